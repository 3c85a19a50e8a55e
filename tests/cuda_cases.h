#pragma once
// Cases of the CUDA engine: a text, shapes, numbers to fill them with, and how far from the reference a
// result may be.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/dtype.h"
#include "base/words.h"
#include "engine/reference/verify.h"
#include "graph/text.h"

namespace upweave::testing {

enum class Values { kNormal, kUniform, kLognormal, kTiny, kHuge, kWide, kDark, kSpecial };

struct Case {
  std::string name, text;
  Shapes shapes;
  Dtype dtype = Dtype::kF32;
  Precision precision = Precision::kStrict;
  Values values = Values::kNormal;
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.text; }

inline double draw(std::mt19937_64& rng, Values values, bool input, int64_t i, int64_t n) {
  std::normal_distribution<double> normal;
  const double z = normal(rng);
  switch (values) {
    case Values::kNormal:
      return z;
    case Values::kUniform:
      return static_cast<double>(rng() >> 11) * 0x1p-53;
    case Values::kLognormal:
      return std::exp(3 * z) * (rng() % 2 ? 1 : -1);
    case Values::kTiny:
      return input ? z * 0x1p-60 : z;
    case Values::kHuge:
      return input ? z * 0x1p60 : z;
    case Values::kWide:
      return input && i > n / 2 ? z * 0x1p-20 : z;  // more than hi and lo hold together at one scale
    case Values::kDark:
      return input && i > n / 2 ? z * 1e-20 : z;  // half the voxels far below the rest
    case Values::kSpecial: {
      static const double kSpecial[] = {NAN, INFINITY, -INFINITY, 1e-40, -0.0};
      return input && rng() % 64 == 0 ? kSpecial[rng() % 5] : z;
    }
  }
  return z;
}

// A graph's input and parameters, as the reference takes them and as bytes.
struct Data {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::vector<char>> bytes;
};
inline Data make_data(const Graph& graph, const Case& c, uint64_t seed = 7) {
  Data data;
  std::mt19937_64 rng(seed);
  for (const Node& node : graph.nodes) {
    if (!is(node, Op::kInput) && !is(node, Op::kParam)) continue;
    const std::string& name = node.name;
    const int64_t n = count(node.shape);
    data.bytes[name].resize(static_cast<size_t>(n * size_of(c.dtype)));
    Tensor tensor{node.shape, std::vector<double>(static_cast<size_t>(n)), {}};
    for (int64_t i = 0; i < n; ++i) {
      store_element(data.bytes[name].data(), c.dtype, i, draw(rng, c.values, is(node, Op::kInput), i, n));
      tensor.data[static_cast<size_t>(i)] = load_element(data.bytes[name].data(), c.dtype, i);
    }
    data.tensors[name] = std::move(tensor);
  }
  return data;
}

// Every element within the bound that the reference derives for it: of all outputs, the result first; or of
// the result alone.
inline void expect_outputs(const Graph& graph, const Data& data, const Case& c,
                           const std::vector<std::vector<char>>& results) {
  const Options options = {.dtype = c.dtype, .engine = Engine::kCuda, .precision = c.precision};
  const std::vector<Tensor> wanted = truths(graph, data.tensors, options);
  for (size_t k = 0; k < results.size(); ++k) {
    const Dtype dtype = k == 0 ? c.dtype : output_dtype(graph, graph.extra_outputs[k - 1].value, c.dtype);
    const Verdict verdict = judge(wanted[k], results[k].data(), dtype);
    EXPECT_TRUE(verdict.right()) << (k == 0 ? "the result" : graph.extra_outputs[k - 1].name) << ": element "
                                 << verdict.index << " of " << verdict.elements << " is " << verdict.got
                                 << ", not " << verdict.want << ", bound " << verdict.bound;
  }
}
inline void expect_result(const Graph& graph, const Data& data, const Case& c,
                          const std::vector<char>& result) {
  expect_outputs(graph, data, c, {result});
}

inline std::string with(const Case& c) {
  const char* values[] = {"normal", "uniform", "lognormal", "tiny", "huge", "wide", "dark", "special"};
  std::string name = c.name + "_" + name_of(c.dtype) +
                     (c.precision == Precision::kFast ? "_fast_" : "_strict_") +
                     values[static_cast<int>(c.values)];
  for (char& ch : name) {
    if (!isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
}

// The documents' five, with odd extents, channels that fill no tile, and asymmetric everything.
inline const Case kFive[] = {
    {"sum_layernorm",
     "conv_transpose kernel 21 k3 s2 p1 op1 | add 1 | layer_norm channel | avg_pool 2 | gelu",
     {{"input", {2, 7, 3, 4, 5}}}},
    {"layernorm_gelu",
     "conv_transpose kernel 19 k4x3x4 s2 p1 | layer_norm channel | gelu | mul 1.5",
     {{"input", {2, 5, 3, 4, 5}}}},
    {"max_max_sum",
     "conv_transpose kernel conv_bias 18 k5 s2 p2 | max_pool 2 | max_pool 3 | sum channel",
     {{"input", {2, 3, 7, 10, 13}}}},
    {"softmax",
     "avg_pool 2 | conv_transpose kernel 17 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
     {{"input", {2, 5, 6, 7, 8}}}},
    {"batchnorm",
     "conv_transpose kernel 24 k5 s1 p1 | batch_norm bn_weight bn_bias | tanh | max_pool 2 | group_norm 8 "
     "gn_weight gn_bias",
     {{"input", {5, 7, 9, 8}}}},
};

// What tiles, phases, shifts and swizzles can get wrong.
inline const Case kShapes[] = {
    {"one_axis", "conv_transpose kernel 16 k3 s2 p1 | relu", {{"input", {3, 4, 70}}}},
    {"stride_three", "conv_transpose kernel 33 k4 s3 p2 op1 | gelu", {{"input", {2, 18, 9, 17}}}},
    {"stride_four", "conv_transpose kernel 8 k5 s4 p1 op3 | tanh", {{"input", {2, 33, 5, 40}}}},
    {"dilated", "conv_transpose kernel 20 k3 s2 p1 op1 d2 | sigmoid", {{"input", {2, 16, 6, 7, 9}}}},
    {"groups", "conv_transpose kernel 8 k3 s2 p1 g2 | relu", {{"input", {2, 6, 5, 7}}}},
    {"mixed_strides",
     "conv_transpose kernel 64 k3x1x4 s1x2x2 p1x0x1 | layer_norm channel",
     {{"input", {2, 64, 5, 9, 8}}}},
    {"many_channels", "conv_transpose kernel 200 k3 s1 p1 | relu", {{"input", {1, 150, 12, 11}}}},
    {"wide_columns",
     "conv_transpose kernel 128 k3 s2 p1 op1 | softmax channel",
     {{"input", {2, 64, 16, 16}}}},
    {"functions",
     "conv_transpose kernel 16 k3 s2 p1 | elu 0.5 | prelu w | softplus beta=2 | sin | abs | add 1 | sqrt",
     {{"input", {2, 8, 6, 7}}}},
    {"kernel_one", "conv_transpose kernel 16 k1 s2 | add bias", {{"input", {2, 3, 4, 5, 6}}}},
    {"boxes",
     "conv_transpose kernel 64 k4 s2 p1 | layer_norm channel | gelu",
     {{"input", {2, 32, 4, 16, 32}}}},
    {"pool_of_three",
     "conv_transpose kernel bias 32 k3 s3 p1 | avg_pool 3 | relu",
     {{"input", {2, 16, 9, 10}}}},
    {"signed_pool",
     "conv_transpose kernel 32 k3 s2 p1 op1 | mul scale | max_pool 2 | tanh",
     {{"input", {2, 16, 8, 9, 8}}}},
    {"biased_norm",
     "conv_transpose kernel bias 20 k3 s2 p1 | layer_norm channel | gelu",
     {{"input", {2, 8, 4, 6, 7}}}},
    {"residual",
     "conv_transpose kernel 24 k3 s2 p1 op1 as c | add bias | add @c | mul @c | add @c",
     {{"input", {2, 8, 4, 6, 7}}}},
    {"unbounded_softmax",
     "conv_transpose kernel 16 k3 s2 p1 op1 | softmax space",
     {{"input", {2, 8, 4, 8, 8}}}},
    {"group_norm",
     "conv_transpose kernel 32 k3 s2 p1 op1 | group_norm 4 w b | relu",
     {{"input", {2, 8, 4, 8, 8}}}},
    // Tiles by line: more of them than blocks; two blocks of channels; another kernel; strides.
    {"many_lines",
     "conv_transpose kernel 24 k5 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 8 gw gb",
     {{"input", {600, 7, 9, 8}}}},
    {"deep_lines",
     "conv_transpose kernel 48 k5 s1 p2 | batch_norm w b | max_pool 2",
     {{"input", {70, 70, 11, 12}}}},
    {"wide_lines",
     "conv_transpose kernel 16 k3x5 s1 p1 | batch_norm w b | max_pool 2 | relu",
     {{"input", {40, 7, 9, 8}}}},
    {"strided_lines", "conv_transpose kernel 24 k3 s2x1 p1 | avg_pool 2 | relu", {{"input", {33, 5, 7, 9}}}},
    // A pool in two halves: tiles of whole lines for both, columns of either sign, two blocks of them, two
    // blocks of channels; and the second half by itself.
    {"signed_lines",
     "conv_transpose kernel 100 k3 s2 p1 | mul scale | max_pool 4 | tanh",
     {{"input", {2, 12, 5, 9, 11}}}},
    {"averaged_lines", "conv_transpose kernel 24 k4 s2 p1 | avg_pool 6 | relu", {{"input", {3, 70, 19, 31}}}},
    {"split_pool",
     "conv_transpose kernel bias 18 k5 s2 p2 | max_pool 2 | max_pool 3 | sum channel",
     {{"input", {2, 3, 8, 7, 9}}}},
    {"one_line",
     "conv_transpose kernel 16 k3 s2 p1 op1 | max_pool 12 | sum channel",
     {{"input", {1, 16, 30}}}},
    // More units than multiprocessors: some in one block each, the rest tile by tile.
    {"many_units",
     "conv_transpose kernel bias 18 k5 s2 p2 | max_pool 2 | max_pool 3 | sum channel",
     {{"input", {150, 3, 8, 7, 9}}}},
    {"all_columns_by_line", "conv_transpose kernel 256 k3 s1 p1 | max_pool 2", {{"input", {40, 64, 11, 12}}}},
};
// What the documents' last pipeline is at its size: tiles by line, pooled values in blocks of channels; with
// 16-bit elements in two launches, the second of which stores over the input's copy.
inline const Case kByLine = {
    "batchnorm_by_line",
    "conv_transpose kernel 48 k5 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 3 gw gb",
    {{"input", {150, 7, 31, 12}}}};

// Depth swept with a ring of planes: several jobs a block, fewer pieces than warpgroups, columns that fill no
// tile, three planes a tile, no depth at all, taps of one width phase alone, outputs that fill no 16 bytes.
inline const Case kSweeps[] = {
    {"sweep_boxes",
     "conv_transpose kernel 64 k4 s2 p1 | layer_norm channel | gelu",
     {{"input", {2, 32, 4, 16, 32}}}},
    {"sweep_long",
     "conv_transpose kernel 16 k4 s2 p1 | layer_norm channel | gelu",
     {{"input", {8, 20, 24, 8, 64}}}},
    {"sweep_many",
     "conv_transpose kernel 64 k4 s2 p1 | layer_norm channel w b | gelu",
     {{"input", {5, 32, 19, 12, 48}}}},
    {"sweep_columns",
     "conv_transpose kernel 50 k3x4x4 s1x2x2 p1 | add bias | tanh",
     {{"input", {2, 12, 7, 8, 16}}}},
    {"sweep_flat", "conv_transpose kernel 48 k4 s2 p1 | relu", {{"input", {5, 40, 16, 32}}}},
    {"sweep_three",
     "conv_transpose kernel 32 k3 s2 p1 op1 | add bias | sigmoid",
     {{"input", {3, 30, 6, 8, 32}}}},
    {"sweep_odd", "conv_transpose kernel 24 k3 s2 p1 | softmax channel", {{"input", {3, 16, 5, 8, 31}}}},
    {"sweep_sums",
     "conv_transpose kernel 24 k4 s2 p1 | relu | mul scale | max space",
     {{"input", {7, 20, 19, 12, 48}}}},
    {"sweep_few",
     "conv_transpose kernel 64 k3 s2 p1 op1 | clamp -1 1 | softmax space",
     {{"input", {40, 16, 2, 4, 16}}}},
    {"sweep_alone", "conv_transpose kernel 16 k1x2x2 s2 | mul scale", {{"input", {2, 16, 5, 8, 32}}}},
    // Values of all channels, in the place of the sums or computed again.
    {"sweep_exp",
     "conv_transpose kernel bias 20 k3 s2 p1 | softmax channel | sigmoid",
     {{"input", {2, 16, 3, 4, 17}}}},
    {"sweep_again",
     "conv_transpose kernel 24 k3 s2 p1 op1 | tanh as y | softmax channel | mul @y",
     {{"input", {2, 16, 3, 4, 16}}}},
    {"sweep_norm",
     "conv_transpose kernel 24 k4 s2 p1 | gelu | layer_norm channel w b | tanh",
     {{"input", {2, 16, 3, 4, 16}}}},
    {"sweep_norm_again",
     "conv_transpose kernel 20 k4 s2 p1 | gelu as y | layer_norm channel w b | add @y",
     {{"input", {2, 16, 3, 4, 16}}}},
    {"sweep_logsumexp",
     "conv_transpose kernel 20 k4 s2 p1 | add bias | tanh as y | logsumexp channel | add @y",
     {{"input", {2, 16, 3, 4, 17}}}},
};

// Two sweeps over one copy, the first for its sums.
inline const Case kSweepSoftmax = {
    "sweep_softmax",
    "conv_transpose kernel 64 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
    {{"input", {3, 32, 9, 8, 32}}}};

// As many samples as make a relay of both.
inline const Case kRelay = {"relay",
                            "conv_transpose kernel 16 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
                            {{"input", {210, 6, 8, 4, 16}}}};

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  auto add = [&](Case c, Dtype dtype, Precision precision, Values values) {
    c.dtype = dtype;
    c.precision = precision;
    c.values = values;
    cases.push_back(std::move(c));
  };
  const Precision both[] = {Precision::kStrict, Precision::kFast};
  std::vector<Case> thorough(std::begin(kFive), std::end(kFive));
  thorough.push_back(kByLine);
  for (const Case& c : thorough) {
    for (const Precision precision : both) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
        add(c, dtype, precision, Values::kNormal);
    }
    for (const Values values : {Values::kUniform, Values::kLognormal, Values::kTiny, Values::kHuge,
                                Values::kWide, Values::kDark, Values::kSpecial}) {
      add(c, Dtype::kF32, Precision::kStrict, values);
    }
  }
  add(kByLine, Dtype::kBF16, Precision::kFast, Values::kDark);
  for (const Case& c : kShapes) {
    for (const Precision precision : both) add(c, Dtype::kF32, precision, Values::kNormal);
  }
  for (const Case& c : kSweeps) {
    for (const Precision precision : both) add(c, Dtype::kF32, precision, Values::kNormal);
  }
  for (const Precision precision : both) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) add(kSweeps[0], dtype, precision, Values::kNormal);
    add(kRelay, Dtype::kF32, precision, Values::kNormal);
  }
  add(kRelay, Dtype::kF32, Precision::kStrict, Values::kSpecial);
  add(kRelay, Dtype::kBF16, Precision::kFast, Values::kNormal);
  for (const Values values : {Values::kUniform, Values::kLognormal, Values::kTiny, Values::kHuge,
                              Values::kDark, Values::kSpecial}) {
    add(kSweeps[0], Dtype::kF32, Precision::kStrict, values);
    add(kSweepSoftmax, Dtype::kF32, Precision::kStrict, values);
  }
  for (const Precision precision : both) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
      add(kSweepSoftmax, dtype, precision, Values::kNormal);
  }
  // Everything in the catalog, made small: one or two samples, extents cut to a few.
  for (const CatalogEntry& entry : catalog()) {
    Case c;
    c.name = entry.slug;
    c.text = Pipeline::named(entry.slug, entry.settings).text();
    c.shapes = entry.shapes;
    Shape& input = c.shapes["input"];
    const int64_t keep =
        entry.text.find("layer_norm last") == std::string::npos ? 0 : 1;  // its weights fix the width
    input[0] = std::min<int64_t>(input[0], 2);
    for (size_t a = 2; a + static_cast<size_t>(keep) < input.size(); ++a)
      input[a] = std::min<int64_t>(input[a], input.size() == 4 ? 20 : 9 + static_cast<int64_t>(a));
    for (const Precision precision : both) add(c, Dtype::kF32, precision, Values::kNormal);
  }
  return cases;
}

}  // namespace upweave::testing
