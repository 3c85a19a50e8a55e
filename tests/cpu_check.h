#pragma once
// What the CPU engine's tests share: data, a run of the engine, and the comparison with the reference. A
// program includes it once, for it replaces operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <random>

#include "api/road.h"
#include "base/dtype.h"
#include "cpu_targets.h"
#include "engine/cpu/micro_batch.h"
#include "engine/cpu/slices.h"
#include "engine/cpu/tile/tile.h"
#include "engine/reference/verify.h"
#include "graph/text.h"
#include "plan/explain.h"
#include "rewrite/rewrite.h"

// Counts what a run allocates with new.
std::atomic<int64_t> allocations{0};
__attribute__((noinline)) void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace upweave::testing {

using Rng = std::mt19937_64;

struct Data {
  Graph graph;
  std::map<std::string, Tensor> tensors;           // what the elements are worth
  std::map<std::string, std::vector<char>> bytes;  // as the engine sees them
};

// Input elements: normal; normal around 1e4; some of them NaN, infinite, subnormal or -0; +-1e4 and normal;
// so small that results are subnormal; some positions so small, and others normal.
enum class Values { kNormal, kLargeMean, kSpecial, kExtreme, kSubnormal, kSomeSubnormal };

// Signed, not saturating; exact in the element type.
inline Data make_data(const std::string& text, const Shapes& shapes, Dtype dtype, Rng& rng, Values values) {
  Data data{infer(parse_text(text), shapes), {}, {}};
  std::normal_distribution<double> normal;
  for (const Node& node : data.graph.nodes) {
    if (!is(node, Op::kInput) && !is(node, Op::kParam)) continue;
    const int64_t n = count(node.shape);
    auto& bytes = data.bytes[node.name];
    bytes.resize(static_cast<size_t>(n * size_of(dtype)));
    Tensor tensor{node.shape, std::vector<double>(static_cast<size_t>(n)), {}};
    for (int64_t i = 0; i < n; ++i) {
      double v = normal(rng);
      if (is(node, Op::kInput) && values == Values::kLargeMean) v += 1e4;
      if (is(node, Op::kInput) && values == Values::kExtreme) v += rng() % 2 ? 1e4 : -1e4;
      const bool small = values == Values::kSubnormal || (values == Values::kSomeSubnormal && i % 16 < 8);
      if (is(node, Op::kInput) && small) v *= dtype == Dtype::kF16 ? 1e-6 : 1e-39;
      if (is(node, Op::kInput) && values == Values::kSpecial && rng() % 64 == 0) {
        static const double kSpecial[] = {NAN, INFINITY, -INFINITY, 1e-40, -0.0};
        v = kSpecial[rng() % 5];
      }
      store_element(bytes.data(), dtype, i, v);
      tensor.data[static_cast<size_t>(i)] = load_element(bytes.data(), dtype, i);
    }
    data.tensors[node.name] = std::move(tensor);
  }
  return data;
}

constexpr int64_t kGuard = 4096;  // bytes around an output

inline Target cpu_target(bool fuse) {
  Target target = engine_of(Engine::kCpu).target;
  target.fuse = fuse;
  return target;
}

// All outputs, the result first.
inline std::vector<std::vector<char>> run_cpu_outputs(const Data& data, Dtype dtype, int threads,
                                                      Algorithm algorithm, bool fuse,
                                                      std::vector<std::string>* notes, Precision precision) {
  const Options options = {
      .dtype = dtype, .precision = precision, .algorithm = algorithm, .threads = threads};
  const auto plan = std::make_shared<const FusedPlan>(
      lower_to_plan(data.graph, tensor_shapes(data.graph), options, cpu_target(fuse)));
  const auto program = lower_to_program(plan, options);
  if (notes) {
    *notes = program->describe();
    notes->insert(notes->begin(), explain(*plan, options, {}));
  }
  std::vector<const void*> parameters;
  for (const std::string& name : parameter_names(plan->source))
    parameters.push_back(data.bytes.at(name).data());
  char* packed = static_cast<char*>(program->allocate(program->packed_bytes()));
  char* workspace = static_cast<char*>(program->allocate(program->workspace_bytes() + 64));
  std::memset(packed, 0xff, program->packed_bytes());  // NaN: nothing may be read before it is written
  std::memset(workspace, 0xff, program->workspace_bytes() + 64);
  std::vector<std::vector<char>> outputs(1 + plan->source.extra_outputs.size());
  std::vector<void*> pointers;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Id id = k == 0 ? plan->source.output : plan->source.extra_outputs[k - 1].value;
    const Dtype type = k == 0 ? dtype : output_dtype(plan->source, id, dtype);
    const auto bytes = static_cast<size_t>(count(plan->source[id].shape) * size_of(type));
    outputs[k].assign(bytes + 2 * kGuard, char(0xff));
    pointers.push_back(outputs[k].data() + kGuard);
  }
  std::vector<const void*> inputs;
  for (const std::string& name : input_names(plan->source)) inputs.push_back(data.bytes.at(name).data());
  program->pack(parameters, packed, nullptr);
  const int64_t before = allocations;
  program->run(packed, inputs.data(), pointers.data(), workspace, nullptr);
  EXPECT_EQ(allocations, before) << "run() allocates";
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(static_cast<unsigned char>(workspace[program->workspace_bytes() + i]), 0xff);
  program->release(packed);
  program->release(workspace);
  for (size_t k = 0; k < outputs.size(); ++k) {  // nothing around them is written
    const auto end = outputs[k].end() - kGuard;
    const auto untouched = [](char c) { return c == char(0xff); };
    EXPECT_TRUE(std::all_of(outputs[k].begin(), outputs[k].begin() + kGuard, untouched)) << "before " << k;
    EXPECT_TRUE(std::all_of(end, outputs[k].end(), untouched)) << "behind output " << k;
    outputs[k] = {outputs[k].begin() + kGuard, end};
  }
  return outputs;
}

inline std::vector<char> run_cpu(const Data& data, Dtype dtype, int threads,
                                 Algorithm algorithm = Algorithm::kDirect, bool fuse = true,
                                 std::vector<std::string>* notes = nullptr,
                                 Precision precision = Precision::kStrict) {
  return run_cpu_outputs(data, dtype, threads, algorithm, fuse, notes, precision).front();
}

// Where a law says that NaN and infinities come out differently, its own graph says what must come out: NaN,
// an infinity or a number. How exact numbers are is tested with finite data.
inline bool of_its_kind(double got, double lawful) {
  return std::isfinite(lawful) ? std::isfinite(got) : fraction_of_bound(got, lawful, 0, Dtype::kF32) == 0;
}

inline void compare_outputs(const Data& data, const std::vector<std::vector<char>>& outputs, Dtype dtype) {
  Options options;
  options.dtype = dtype;
  const std::vector<Tensor> wanted = truths(data.graph, data.tensors, options);
  std::vector<Tensor> lawful;
  int wrong = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Tensor& truth = wanted[k];
    const Dtype type =
        k == 0 ? dtype : output_dtype(data.graph, data.graph.extra_outputs[k - 1].value, dtype);
    for (size_t i = 0; i < truth.data.size() && wrong < 5; ++i) {
      const double want = truth.data[i], got = load_element(outputs[k].data(), type, static_cast<int64_t>(i));
      const double bound = truth.err[i];
      if (std::isfinite(want)) {
        ASSERT_TRUE(std::isfinite(bound)) << "any value would do for element " << i;
      }
      if (fraction_of_bound(got, want, bound, type) <= 1) continue;
      if (!std::isfinite(want)) {
        if (lawful.empty()) lawful = evaluate_outputs(rewrite(data.graph).graph, data.tensors);
        if (of_its_kind(got, lawful[k].data[i])) continue;
      }
      ++wrong;
      ADD_FAILURE() << "element " << i << " of output " << k << " is " << got << ", not " << want
                    << (lawful.empty() ? "" : " nor " + std::to_string(lawful[k].data[i])) << ": off by "
                    << got - want << ", bound " << bound;
    }
  }
}

inline void compare(const Data& data, const std::vector<char>& output, Dtype dtype) {
  compare_outputs(data, {output}, dtype);
}

inline void check(const std::string& text, const Shapes& shapes, uint64_t seed, Dtype dtype = Dtype::kF32,
                  Values values = Values::kNormal, bool fuse = true,
                  Algorithm algorithm = Algorithm::kDirect) {
  SCOPED_TRACE(text + ", seed " + std::to_string(seed));
  Rng rng(seed);
  const Data data = make_data(text, shapes, dtype, rng, values);
  std::vector<std::string> notes;
  const auto one = run_cpu_outputs(data, dtype, 1, algorithm, fuse, &notes, Precision::kStrict);
  std::string said;
  for (const std::string& note : notes) said += "\n  " + note;
  SCOPED_TRACE("input " + to_string(data.graph[0].shape) + ", dtype " +
               std::to_string(static_cast<int>(dtype)) + said);
  compare_outputs(data, one, dtype);
  for (const int threads : {2, 3}) {
    EXPECT_EQ(one, run_cpu_outputs(data, dtype, threads, algorithm, fuse, nullptr, Precision::kStrict))
        << threads << " threads";
  }
}

inline const Dtype kTypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

struct Named {
  const char* text;
  Shape input;
};

// The documents' five, with odd extents, channels that fill no vector, and asymmetric everything.
inline const Named kFive[] = {
    {"conv_transpose kernel 21 k3 s2 p1 op1 | add 1 | layer_norm channel | avg_pool 2 | gelu",
     {2, 7, 3, 4, 5}},
    {"conv_transpose kernel 19 k4x3x4 s2 p1 | layer_norm channel | gelu | mul 1.5", {2, 5, 3, 4, 5}},
    {"conv_transpose kernel conv_bias 18 k5 s2 p2 | max_pool 2 | max_pool 3 | sum channel", {2, 3, 8, 7, 9}},
    {"avg_pool 2 | conv_transpose kernel 17 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
     {2, 5, 6, 7, 8}},
    {"conv_transpose kernel 24 k5 s1 p1 | batch_norm bn_weight bn_bias | tanh | max_pool 2 "
     "| group_norm 8 gn_weight gn_bias",
     {5, 7, 9, 8}},
};

}  // namespace upweave::testing
