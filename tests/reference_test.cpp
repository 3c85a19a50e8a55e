// The float64 reference by hand: integers in, exact integers or well known numbers out. And the conversions
// between element types, every 16-bit pattern of them.
#include "engine/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/dtype.h"
#include "graph/text.h"
#include "random_pipeline.h"

namespace upweave {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();
using Data = std::vector<double>;

// Runs a text; each tensor is its shape and its elements (none: 1, 2, 3, ...).
Data run(const std::string& text, const std::map<std::string, std::pair<Shape, Data>>& given) {
  Shapes shapes;
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : given) {
    shapes[name] = tensor.first;
    tensors[name] = {tensor.first, tensor.second, {}};
    if (tensor.second.empty()) {
      tensors[name].data.resize(static_cast<size_t>(count(tensor.first)));
      std::iota(tensors[name].data.begin(), tensors[name].data.end(), 1.0);
    }
  }
  return evaluate(infer(parse_text(text), shapes), tensors).data;
}

// One row of values, N = C = 1.
Data row(const std::string& text, const Data& x) {
  return run(text, {{"input", {{1, 1, static_cast<int64_t>(x.size())}, x}}});
}

void expect_same(const Data& actual, const Data& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(actual[i])) << what << " [" << i << "] is " << actual[i];
    else
      EXPECT_DOUBLE_EQ(actual[i], expected[i]) << what << " [" << i << "]";
  }
}

TEST(Reference, TransposedConvolutionScattersEachInput) {
  // x = 1 2 3, K = 1 10 100, stride 2: 1 10 100+2 20 200+3 30 300
  EXPECT_EQ(run("conv_transpose k s2", {{"input", {{1, 1, 3}, {}}}, {"k", {{1, 1, 3}, {1, 10, 100}}}}),
            (Data{1, 10, 102, 20, 203, 30, 300}));
  EXPECT_EQ(run("conv_transpose k s2 p1 op1", {{"input", {{1, 1, 3}, {}}}, {"k", {{1, 1, 3}, {1, 10, 100}}}}),
            (Data{10, 102, 20, 203, 30, 300}));
  // A kernel shorter than the stride leaves gaps, where only the bias is.
  EXPECT_EQ(run("conv_transpose k b s3",
                {{"input", {{1, 1, 2}, {}}}, {"k", {{1, 1, 1}, {5}}}, {"b", {{1}, {1000}}}}),
            (Data{1005, 1000, 1000, 1010}));
  EXPECT_EQ(run("conv_transpose k d2", {{"input", {{1, 1, 2}, {}}}, {"k", {{1, 1, 2}, {1, 10}}}}),
            (Data{1, 2, 10, 20}));
  // Input channels add up; output channels have their own taps: kernel is (C_in, C_out, K).
  EXPECT_EQ(run("conv_transpose k", {{"input", {{1, 2, 1}, {2, 3}}}, {"k", {{2, 2, 1}, {1, 10, 100, 1000}}}}),
            (Data{2 + 300, 20 + 3000}));
  // Two groups: each output channel sees its own half of the input channels.
  EXPECT_EQ(run("conv_transpose k g2", {{"input", {{1, 2, 1}, {2, 3}}}, {"k", {{2, 1, 1}, {10, 100}}}}),
            (Data{20, 300}));
  // Two axes with different stride and padding.
  EXPECT_EQ(
      run("conv_transpose k s2x1 p0x1", {{"input", {{1, 1, 2, 2}, {}}}, {"k", {{1, 1, 1, 3}, {1, 10, 100}}}}),
      (Data{10 + 2, 100 + 20, 0, 0, 30 + 4, 300 + 40}));
  EXPECT_EQ(run("conv_transpose k s2 out2", {{"input", {{1, 1, 3}, {}}}, {"k", {{1, 1, 3}, {1, 10, 100}}}}),
            (Data{1, 10}));
}

// Integer data makes sums exact, so the definition by gathering must agree to the last bit.
TEST(Reference, TransposedConvolutionIsExactOnIntegers) {
  const Shape in = {2, 4, 3, 4, 2}, kernel = {4, 3, 2, 3, 1};
  const Graph graph =
      infer(parse_text("conv_transpose k s2x1x3 p1x0x1 op1x0x2 d1x2x1 g2"), {{"input", in}, {"k", kernel}});
  testing::Random rng(testing::first_seed());
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, shape] : Shapes{{"input", in}, {"k", kernel}}) {
    tensors[name] = {shape, Data(static_cast<size_t>(count(shape))), {}};
    for (double& v : tensors[name].data) v = static_cast<double>(rng.integer(-9, 9));
  }
  const Tensor out = evaluate(graph, tensors);
  const int64_t stride[] = {2, 1, 3}, padding[] = {1, 0, 1}, dilation[] = {1, 2, 1};
  const Shape xs = row_major(in), ks = row_major(kernel);
  for_each_index(out.shape, [&](const Shape& o, int64_t at) {
    double sum = 0;
    for (int64_t ci = o[1] / 3 * 2; ci < o[1] / 3 * 2 + 2; ++ci) {
      for_each_index({2, 3, 1}, [&](const Shape& k, int64_t) {
        int64_t xi = o[0] * xs[0] + ci * xs[1], ki = ci * ks[0] + o[1] % 3 * ks[1];
        for (size_t a = 0; a < 3; ++a) {
          const int64_t i = o[a + 2] + padding[a] - k[a] * dilation[a];
          if (i < 0 || i % stride[a] != 0 || i / stride[a] >= in[a + 2]) return;
          xi += i / stride[a] * xs[a + 2];
          ki += k[a] * ks[a + 2];
        }
        sum += tensors["input"].data[static_cast<size_t>(xi)] * tensors["k"].data[static_cast<size_t>(ki)];
      });
    }
    EXPECT_EQ(out.data[static_cast<size_t>(at)], sum);
  });
}

TEST(Reference, ConvolutionGathers) {
  const std::pair<Shape, Data> x = {{1, 1, 4}, {}}, k = {{1, 1, 3}, {1, 10, 100}};  // x = 1 2 3 4
  EXPECT_EQ(run("conv k", {{"input", x}, {"k", k}}), (Data{321, 432}));
  EXPECT_EQ(run("conv k p1", {{"input", x}, {"k", k}}), (Data{210, 321, 432, 43}));
  EXPECT_EQ(run("conv k p1 pe0", {{"input", x}, {"k", k}}), (Data{210, 321, 432}));
  EXPECT_EQ(run("conv k p1 s2", {{"input", x}, {"k", k}}), (Data{210, 432}));
  EXPECT_EQ(run("conv k p2 d2", {{"input", x}, {"k", k}}), (Data{310, 420, 31, 42}));
  EXPECT_EQ(run("conv k p1 reflect", {{"input", x}, {"k", k}}), (Data{212, 321, 432, 343}));
  EXPECT_EQ(run("conv k p1 replicate", {{"input", x}, {"k", k}}), (Data{211, 321, 432, 443}));
  EXPECT_EQ(run("conv k p1 circular", {{"input", x}, {"k", k}}), (Data{214, 321, 432, 143}));
  // Where only padding is seen there is the bias.
  EXPECT_EQ(run("conv k b p2", {{"input", {{1, 1, 1}, {5}}}, {"k", {{1, 1, 1}, {3}}}, {"b", {{1}, {1000}}}}),
            (Data{1000, 1000, 1015, 1000, 1000}));
  // kernel is (C_out, C_in, K), and C_in of a group with groups.
  EXPECT_EQ(run("conv k", {{"input", {{1, 2, 1}, {2, 3}}}, {"k", {{2, 2, 1}, {1, 10, 100, 1000}}}}),
            (Data{2 + 30, 200 + 3000}));
  EXPECT_EQ(run("conv k g2", {{"input", {{1, 2, 1}, {2, 3}}}, {"k", {{2, 1, 1}, {10, 100}}}}),
            (Data{20, 300}));
  EXPECT_EQ(
      run("conv k s1x2 p1x0", {{"input", {{1, 1, 2, 4}, {}}}, {"k", {{1, 1, 2, 2}, {1, 10, 100, 1000}}}}),
      (Data{2100, 4300, 6521, 8743, 65, 87}));
}

TEST(Reference, Moves) {
  const std::map<std::string, std::pair<Shape, Data>> x = {{"input", {{1, 2, 2, 3}, {}}}};  // 1..12
  EXPECT_EQ(run("mul 10 as t | @input | cat @t @input", {{"input", {{2, 1, 2}, {1, 2, 3, 4}}}}),
            (Data{1, 2, 10, 20, 1, 2, 3, 4, 30, 40, 3, 4}));
  EXPECT_EQ(run("crop 1:x:-1", x), (Data{4, 5, 10, 11}));
  EXPECT_EQ(run("crop -1: channels=1:", x), (Data{12}));
  EXPECT_EQ(run("crop channels=:-1", x), (Data{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run("crop 0:9x-9:1", x), (Data{1, 4, 7, 10}));
  EXPECT_EQ(row("pad 1", {5, 6, 7}), (Data{0, 5, 6, 7, 0}));
  EXPECT_EQ(row("pad 2 e0 value=9", {5, 6, 7}), (Data{9, 9, 5, 6, 7}));
  EXPECT_EQ(row("pad 2 e1 reflect", {5, 6, 7}), (Data{7, 6, 5, 6, 7, 6}));
  EXPECT_EQ(row("pad 0 e2 replicate", {5, 6, 7}), (Data{5, 6, 7, 7, 7}));
  EXPECT_EQ(row("pad 3 e1 circular", {5, 6, 7}), (Data{5, 6, 7, 5, 6, 7, 5}));
  expect_same(row("pad 1 reflect", {kInf, 1, kNan}), {1, kInf, 1, kNan, 1}, "pad");
  EXPECT_EQ(run("pad 1x0", {{"input", {{1, 1, 1, 2}, {3, 4}}}}), (Data{0, 0, 3, 4, 0, 0}));
  EXPECT_EQ(run("upsample 1x2 nearest", {{"input", {{1, 1, 2, 2}, {}}}}), (Data{1, 1, 2, 2, 3, 3, 4, 4}));
  // Places (o + 1/2) / 2 - 1/2 = 0 (not -1/4), 1/4, 3/4, 5/4 (beyond the last).
  EXPECT_EQ(row("upsample 2 linear", {4, 8}), (Data{4, 5, 7, 8}));
  EXPECT_EQ(row("upsample 2 linear corners", {0, 3}), (Data{0, 1, 2, 3}));
  EXPECT_EQ(row("upsample 3 linear corners", {7}), (Data{7, 7, 7}));
  EXPECT_EQ(run("upsample 2 linear", {{"input", {{1, 1, 2, 2}, {0, 16, 32, 48}}}}),
            (Data{0, 4, 12, 16, 8, 12, 20, 24, 24, 28, 36, 40, 32, 36, 44, 48}));
  // A weight of 0 times infinity is NaN, as in PyTorch.
  expect_same(row("upsample 2 linear corners", {1, kInf}), {kNan, kInf, kInf, kNan}, "upsample of inf");
  EXPECT_EQ(run("pixel_shuffle 2", {{"input", {{1, 4, 1, 2}, {}}}}), (Data{1, 3, 2, 4, 5, 7, 6, 8}));
  EXPECT_EQ(run("pixel_shuffle 2 | pixel_unshuffle 2", {{"input", {{1, 8, 1, 2}, {}}}}),
            run("add 0", {{"input", {{1, 8, 1, 2}, {}}}}));
  EXPECT_EQ(run("pixel_unshuffle 2", {{"input", {{1, 1, 4}, {}}}}), (Data{1, 3, 2, 4}));
}

TEST(Reference, GatesPowersAndGivenStatistics) {
  EXPECT_EQ(run("glu channel", {{"input", {{1, 4, 1}, {6, 8, 0, kInf}}}}), (Data{3, 8}));
  EXPECT_EQ(row("pow 2", {-3, 0.5}), (Data{9, 0.25}));
  expect_same(row("pow 0.5", {4, -1, -kInf}), {2, kNan, kNan}, "pow 0.5");
  expect_same(row("pow -0.5", {4, 0}), {0.5, kInf}, "pow -0.5");
  const double half_turn = M_PI / 2;
  expect_same(run("snake a", {{"input", {{1, 1, 1}, {half_turn}}}, {"a", {{1}, {1}}}}), {half_turn + 1},
              "snake");
  expect_same(
      run("snake a b eps=1", {{"input", {{1, 1, 1}, {half_turn}}}, {"a", {{1}, {1}}}, {"b", {{1}, {3}}}}),
      {half_turn + 0.25}, "snake with beta");
  expect_same(run("snake a eps=1", {{"input", {{1, 1, 1}, {7}}}, {"a", {{1}, {0}}}}), {7}, "snake of 0");
  expect_same(run("batch_norm_given m v w b eps=1", {{"input", {{1, 2, 1}, {5, 5}}},
                                                     {"m", {{2}, {1, 3}}},
                                                     {"v", {{2}, {3, 8}}},
                                                     {"w", {{2}, {3, 3}}},
                                                     {"b", {{2}, {10, 20}}}}),
              {4 / 2. * 3 + 10, 2 / 3. * 3 + 20}, "given statistics");
  expect_same(run("rms_norm channel w eps=0", {{"input", {{1, 2, 1}, {1, 7}}}, {"w", {{2}, {10, 5}}}}),
              {2, 7}, "rms");
  EXPECT_EQ(run("matmul w b",
                {{"input", {{1, 2, 2}, {1, 2, 3, 4}}}, {"w", {{1, 2}, {1, 10}}}, {"b", {{1}, {100}}}}),
            (Data{131, 142}));
  expect_same(run("param v | weight_norm g as w | @input | conv @w",
                  {{"input", {{1, 1, 2}, {1, 10}}}, {"v", {{1, 1, 2}, {3, 4}}}, {"g", {{1}, {10}}}}),
              {6 + 80}, "weight norm");
}

TEST(Reference, Pools) {
  const std::map<std::string, std::pair<Shape, Data>> x = {{"input", {{1, 1, 3, 5}, {}}}};  // 1..15
  EXPECT_EQ(run("max_pool 2", x), (Data{7, 9}));
  EXPECT_EQ(run("min_pool 2", x), (Data{1, 3}));
  EXPECT_EQ(run("avg_pool 2", x), (Data{4, 6}));
  EXPECT_EQ(run("avg_pool 3x5", x), (Data{8}));
  EXPECT_EQ(run("max_pool 2x3 s1x2", x), (Data{8, 10, 13, 15}));
  EXPECT_EQ(run("max_pool 2 sign=w", {{"input", {{1, 2, 2}, {1, 2, 3, 4}}}, {"w", {{2}, {1, -1}}}}),
            (Data{2, 3}));
  expect_same(row("max_pool 2", {kNan, 1, kInf, kNan, -kInf, -kInf}), {kNan, kNan, -kInf}, "max_pool");
  expect_same(row("min_pool 2", {kNan, 1, kInf, 2}), {kNan, 2}, "min_pool");
}

TEST(Reference, NormsOfKnownSets) {
  // Each set is -1 and 1 around its mean, or 0 and 2: the normalised values are -1 and 1.
  const double one = 1 / std::sqrt(1 + 1e-5);
  expect_same(run("layer_norm channel", {{"input", {{1, 2, 2}, {1, 5, 3, 7}}}}), {-one, -one, one, one},
              "channel");
  expect_same(run("layer_norm last eps=0", {{"input", {{1, 2, 2}, {1, 3, 6, 8}}}}), {-1, 1, -1, 1}, "last");
  expect_same(run("layer_norm last 2 w b eps=0",
                  {{"input", {{1, 1, 1, 2}, {1, 3}}}, {"w", {{1, 2}, {2, 3}}}, {"b", {{1, 2}, {10, 20}}}}),
              {8, 23}, "last 2");
  expect_same(run("batch_norm w b eps=0",
                  {{"input", {{2, 2, 1}, {1, 5, 3, 9}}}, {"w", {{2}, {1, -2}}}, {"b", {{2}, {0, 7}}}}),
              {-1, 7 + 2, 1, 7 - 2}, "batch");
  expect_same(run("instance_norm eps=0", {{"input", {{2, 1, 2}, {1, 3, 10, 6}}}}), {-1, 1, 1, -1},
              "instance");
  expect_same(run("group_norm 1 eps=0", {{"input", {{1, 2, 1}, {4, 8}}}}), {-1, 1}, "group");
  expect_same(
      run("group_norm 2 w eps=0.25", {{"input", {{1, 4, 1}, {0, 1, 5, 6}}}, {"w", {{4}, {1, 2, 3, 4}}}}),
      {-0.5 / std::sqrt(0.5), 1 / std::sqrt(0.5), -1.5 / std::sqrt(0.5), 2 / std::sqrt(0.5)}, "groups");
  expect_same(run("rms_norm channel eps=0", {{"input", {{1, 2, 1}, {3, -3}}}}), {1, -1}, "rms");
  expect_same(run("moments instance", {{"input", {{1, 2, 2}, {1, 3, 4, 8}}}}), {2, 6, 1, 4}, "moments");
  expect_same(run("layer_norm channel", {{"input", {{1, 2, 2}, {kNan, 1, 2, 3}}}}), {kNan, -one, kNan, one},
              "NaN");
  // A mean of 1e4 with a spread of 1 survives.
  expect_same(run("instance_norm eps=0", {{"input", {{1, 1, 2}, {1e9 - 1, 1e9 + 1}}}}), {-1, 1},
              "large mean");
}

TEST(Reference, Softmax) {
  expect_same(row("softmax space", {0, std::log(3.0)}), {0.25, 0.75}, "softmax");
  expect_same(row("softmax space", {1000, 1000}), {0.5, 0.5}, "large");
  expect_same(row("softmax space", {-kInf, 0}), {0, 1}, "-inf");
  expect_same(row("softmax space", {kInf, 0}), {kNan, kNan}, "inf");
  expect_same(row("softmax space", {kNan, 0}), {kNan, kNan}, "NaN");
  expect_same(row("softmax space", {-kInf, -kInf}), {kNan, kNan}, "nothing but -inf");
  expect_same(run("softmax channel", {{"input", {{1, 2, 2}, {0, 5, std::log(3.0), 5}}}}),
              {0.25, 0.5, 0.75, 0.5}, "channel");
  expect_same(row("softmax_stats space", {1, 1, 1}), {1, 3}, "stats");
  expect_same(row("logsumexp space", {1000, 1000}), {1000 + std::log(2.0)}, "logsumexp");
  expect_same(row("logsumexp space", {-kInf, -kInf}), {-kInf}, "logsumexp -inf");
  expect_same(row("logsumexp space", {kInf, 0}), {kInf}, "logsumexp inf");
  expect_same(row("logsumexp space", {kNan, 0}), {kNan}, "logsumexp NaN");
}

TEST(Reference, Reductions) {
  const std::map<std::string, std::pair<Shape, Data>> x = {{"input", {{1, 2, 1, 2, 3}, {}}}};  // 1..12
  EXPECT_EQ(run("sum channel", x), (Data{8, 10, 12, 14, 16, 18}));
  EXPECT_EQ(run("sum space", x), (Data{21, 57}));
  EXPECT_EQ(run("mean height", x), (Data{2.5, 3.5, 4.5, 8.5, 9.5, 10.5}));
  EXPECT_EQ(run("mean width", x), (Data{2, 5, 8, 11}));
  EXPECT_EQ(run("max space", x), (Data{6, 12}));
  EXPECT_EQ(run("min channel", x), (Data{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run("max depth", x).size(), 12u);
  expect_same(row("max space", {1, kNan, 3}), {kNan}, "NaN");
}

TEST(Reference, Activations) {
  const double e = std::exp(1.0);
  const std::vector<std::tuple<std::string, Data, Data>> cases = {
      {"relu", {-1, 0, 2, kNan, -kInf}, {0, 0, 2, kNan, 0}},
      {"leaky_relu 0.5", {-2, 3, -kInf}, {-1, 3, -kInf}},
      {"tanh", {0, kInf, -kInf}, {0, 1, -1}},
      {"sigmoid", {0, 800, -800, std::log(3.0)}, {0.5, 1, 0, 0.75}},
      {"exp", {0, 1, -kInf}, {1, e, 0}},
      {"swish", {0, std::log(3.0)}, {0, 0.75 * std::log(3.0)}},
      {"mish", {0, 100}, {0, 100}},
      {"elu", {2, 0, -kInf, -std::log(2.0)}, {2, 0, -1, -0.5}},
      {"elu 0.5", {3, -std::log(2.0)}, {3, -0.25}},
      {"softplus", {0, kInf, -kInf, 21}, {std::log(2.0), kInf, 0, 21}},
      {"softplus beta=2 threshold=1", {0, 0.75, -kInf}, {std::log(2.0) / 2, 0.75, 0}},
      {"sin", {0, M_PI / 2, -M_PI / 6}, {0, 1, -0.5}},
      {"abs", {-2, 3, -kInf}, {2, 3, kInf}},
      {"sqrt", {4, 0, kInf}, {2, 0, kInf}},
      {"hardswish", {-4, -3, 0, 3, 4, 1}, {0, 0, 0, 3, 4, 4.0 / 6}},
      {"hardtanh -1 1", {-2, 0.5, 2, kNan}, {-1, 0.5, 1, kNan}},
      {"clamp 0 inf", {-2, 3, kInf}, {0, 3, kInf}},
      {"clamp 3 1", {-2, 2, 5}, {1, 1, 1}},  // lo > hi: everything becomes hi
      {"gelu", {0, 1, -1, 10}, {0, 0.84134474606854293, -0.15865525393145707, 10}},
      {"gelu tanh", {0, 1}, {0, 0.84119199060827676}},
      {"mish", {1}, {0.86509838826731034}},
  };
  for (const auto& [text, x, expected] : cases) expect_same(row(text, x), expected, text);
}

TEST(Reference, Arithmetic) {
  const std::map<std::string, std::pair<Shape, Data>> x = {
      {"input", {{1, 2, 2}, {1, 2, 3, 4}}}, {"c", {{2}, {10, 100}}}, {"f", {{1, 2, 2}, {5, 6, 7, 8}}}};
  auto with = [&](const std::string& text, const char* tensor) {
    auto given = x;
    for (const char* name : {"c", "f"}) {
      if (std::string(name) != tensor) given.erase(name);
    }
    return run(text, given);
  };
  EXPECT_EQ(with("add 1", ""), (Data{2, 3, 4, 5}));
  EXPECT_EQ(with("sub c", "c"), (Data{-9, -8, -97, -96}));
  EXPECT_EQ(with("mul f", "f"), (Data{5, 12, 21, 32}));
  EXPECT_EQ(with("div c", "c"), (Data{0.1, 0.2, 0.03, 0.04}));
  EXPECT_EQ(with("minimum 2", ""), (Data{1, 2, 2, 2}));
  EXPECT_EQ(with("maximum f:full", "f"), (Data{5, 6, 7, 8}));
  EXPECT_EQ(with("mul @input | sub @input", ""), (Data{0, 2, 6, 12}));
  EXPECT_EQ(with("sum space | add @input", ""), (Data{4, 5, 10, 11}));
  expect_same(row("minimum 0", {kNan, -1}), {kNan, -1}, "NaN");
  expect_same(row("maximum 0", {kNan, -1}), {kNan, 0}, "NaN");
}

TEST(Reference, PiecesOfWeights) {
  EXPECT_EQ(run("param k | center as c | @input | conv_transpose @c",
                {{"input", {{1, 1, 1}, {1}}}, {"k", {{1, 2, 2}, {1, 2, 3, 6}}}}),
            (Data{-1, -2, 1, 2}));
  // K' of windows of 2, padding 0: averages of tap pairs.
  EXPECT_EQ(run("param k | pool_taps 2 as c | @input | conv_transpose @c",
                {{"input", {{1, 1, 1}, {1}}}, {"k", {{1, 1, 3}, {2, 4, 6}}}}),
            (Data{3, 3}));
  // The mean over space of 1 10 102 20 203 30 300.
  expect_same(run("mean_conv k s2 out7", {{"input", {{1, 1, 3}, {}}}, {"k", {{1, 1, 3}, {1, 10, 100}}}}),
              {666.0 / 7}, "mean_conv");
  // A tap that reaches no output takes no part, whatever it is.
  expect_same(run("mean_conv k p1 out1", {{"input", {{1, 1, 1}, {2}}}, {"k", {{1, 1, 3}, {kNan, 3, kInf}}}}),
              {6}, "unused taps");
}

TEST(Reference, AnEmptyBatchGivesAnEmptyOutput) {
  for (const char* text :
       {"conv_transpose k | batch_norm | relu", "conv_transpose k | softmax space | max_pool 2",
        "conv_transpose k | mean space | logsumexp channel"}) {
    EXPECT_EQ(run(text, {{"input", {{0, 2, 5}, {}}}, {"k", {{2, 3, 2}, {}}}}).size(), 0u) << text;
  }
}

TEST(Reference, MissingTensorsAreNamed) {
  const Graph graph = infer(parse_text("add b"), {{"input", {1, 1, 1}}});
  try {
    evaluate(graph, {{"input", {{1, 1, 1}, {1}, {}}}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the tensor b is missing");
  }
}

// The error bounds that engines are held to: float32 arithmetic must satisfy them, a slip of a few units must
// not.
TEST(Reference, BoundsHoldForFloat32SumsAndAreTight) {
  const Shape in = {1, 64, 9}, kernel = {64, 4, 5};
  const Graph graph = infer(parse_text("conv_transpose k"), {{"input", in}, {"k", kernel}});
  testing::Random rng(testing::first_seed());
  const auto tensors = random_tensors(graph, rng);
  const Rounding rounding;
  const Tensor truth = evaluate(graph, tensors, &rounding);
  std::vector<float> single(truth.data.size());
  for (int64_t ci = 0; ci < 64; ++ci) {
    for (int64_t co = 0; co < 4; ++co) {
      for (int64_t k = 0; k < 5; ++k) {
        for (int64_t i = 0; i < 9; ++i) {
          single[static_cast<size_t>(co * 13 + i + k)] +=
              static_cast<float>(tensors.at("input").data[static_cast<size_t>(ci * 9 + i)]) *
              static_cast<float>(tensors.at("k").data[static_cast<size_t>((ci * 4 + co) * 5 + k)]);
        }
      }
    }
  }
  for (size_t i = 0; i < single.size(); ++i) {
    EXPECT_LE(std::fabs(single[i] - truth.data[i]), truth.err[i]);
    EXPECT_LT(truth.err[i], 64 * 5 * 0x1p-17) << "a bound of more than 2^-17 of sum|a||b| would accept TF32";
  }
}

// --- Element types -----------------------------------------------------------------------------------------

TEST(Dtype, EverySixteenBitValueComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t b = static_cast<uint16_t>(bits);
    const double half = f16_to_double(b), brain = bf16_to_float(b);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(f16_to_double(double_to_f16(half)))) << bits;
    } else {
      EXPECT_EQ(double_to_f16(half), b) << half;
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(double_to_bf16(brain)))) << bits;
    } else {
      EXPECT_EQ(double_to_bf16(brain), b) << brain;
    }
  }
}

// Between every two neighbours: below the middle goes down, above it up, the middle itself to the even one.
TEST(Dtype, RoundsToNearestEven) {
  auto check = [](uint16_t (*round)(double), double (*value)(uint16_t), uint16_t largest_bits) {
    for (uint16_t bits = 0; bits < largest_bits; ++bits) {
      const double lo = value(bits), hi = value(static_cast<uint16_t>(bits + 1)), middle = lo + (hi - lo) / 2;
      const uint16_t even = bits % 2 == 0 ? bits : static_cast<uint16_t>(bits + 1);
      ASSERT_EQ(round(middle), even) << middle;
      ASSERT_EQ(round(-middle), even | 0x8000) << -middle;
      ASSERT_EQ(round(std::nextafter(middle, 0)), bits) << middle;
      ASSERT_EQ(round(std::nextafter(middle, kInf)), bits + 1) << middle;
    }
  };
  check(
      double_to_f16, [](uint16_t b) { return f16_to_double(b); }, 0x7bff);
  check(
      double_to_bf16, [](uint16_t b) { return static_cast<double>(bf16_to_float(b)); }, 0x7f7f);
}

TEST(Dtype, OverflowGoesToInfinityAtTheMiddleOfTheNextStep) {
  EXPECT_EQ(double_to_f16(65504), 0x7bff);
  EXPECT_EQ(double_to_f16(std::nextafter(65520.0, 0)), 0x7bff);
  EXPECT_EQ(double_to_f16(65520), 0x7c00);
  EXPECT_EQ(double_to_f16(-1e300), 0xfc00);
  EXPECT_EQ(double_to_f16(kInf), 0x7c00);
  EXPECT_EQ(double_to_bf16(0x1.fep127), 0x7f7f);
  EXPECT_EQ(double_to_bf16(std::nextafter(0x1.ffp127, 0)), 0x7f7f);
  EXPECT_EQ(double_to_bf16(0x1.ffp127), 0x7f80);
  EXPECT_EQ(double_to_bf16(-1e300), 0xff80);
  EXPECT_EQ(double_to_bf16(-kInf), 0xff80);
}

TEST(Dtype, SubnormalsAndZerosKeepTheirSign) {
  EXPECT_EQ(double_to_f16(0x1p-24), 0x0001);
  EXPECT_EQ(double_to_f16(0x1p-25), 0x0000) << "a tie with zero, which is even";
  EXPECT_EQ(double_to_f16(0x1.8p-25), 0x0001);
  EXPECT_EQ(double_to_f16(0x1.ffcp-15), 0x0400) << "rounds up to the least normal number";
  EXPECT_EQ(double_to_f16(-0.0), 0x8000);
  EXPECT_EQ(double_to_f16(-1e-300), 0x8000);
  EXPECT_EQ(double_to_bf16(0x1p-133), 0x0001);
  EXPECT_EQ(double_to_bf16(0x1p-134), 0x0000);
  EXPECT_EQ(double_to_bf16(-1e-300), 0x8000);
}

// Rounding through float32 first would round twice and give 0x3c00.
TEST(Dtype, RoundsOnce) {
  const double just_above_a_tie = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(double_to_f16(just_above_a_tie), 0x3c01);
  EXPECT_EQ(double_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
}

TEST(Dtype, ConstantsMeanWhatTheySay) {
  for (const Dtype t : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    double stored = 0;
    alignas(8) char bytes[8];
    auto through = [&](double v) {
      store_element(bytes, t, 0, v);
      stored = load_element(bytes, t, 0);
      return stored;
    };
    EXPECT_EQ(through(largest(t)), largest(t));
    EXPECT_EQ(through(1 + roundoff(t)), 1) << "a tie, to even";
    EXPECT_EQ(through(1 + 3 * roundoff(t)), 1 + 4 * roundoff(t)) << "a tie, to even";
    EXPECT_EQ(through(2 * tiny(t)), 2 * tiny(t)) << "the least subnormal number";
    EXPECT_EQ(through(tiny(t)), 0);
  }
}

}  // namespace
}  // namespace upweave
