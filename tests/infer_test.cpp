// Shapes: what each operation makes of the value it meets, and the sentence for each corner that is refused.
#include <gtest/gtest.h>

#include <set>

#include "graph/operation.h"
#include "graph/text.h"

namespace upweave {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

struct Case {
  std::string text;
  Shapes shapes;
  Shape expected;
};

const Shape k1d = {2, 6, 9}, k2d = {2, 6, 8, 9}, k3d = {2, 6, 7, 8, 9};

std::vector<Case> cases() {
  return {
      // O = (I - 1) s - 2 p + d (K - 1) + op + 1
      {"conv_transpose k s3 p1 op2", {{"input", k1d}, {"k", {6, 4, 5}}}, {2, 4, 8 * 3 - 2 + 4 + 2 + 1}},
      {"conv_transpose k", {{"input", k2d}, {"k", {6, 4, 3, 1}}}, {2, 4, 10, 9}},
      {"conv_transpose k s2x1 p1x0 op1x0 d1x2", {{"input", k2d}, {"k", {6, 4, 3, 3}}}, {2, 4, 16, 13}},
      {"conv_transpose k s2x1x3 p0x1x2 d3x1x1",
       {{"input", k3d}, {"k", {6, 4, 2, 3, 4}}},
       {2, 4, 6 * 2 + 3 + 1, 7 - 2 + 2 + 1, 8 * 3 - 4 + 3 + 1}},
      {"conv_transpose k b g3", {{"input", k2d}, {"k", {6, 4, 1, 1}}}, {2, 12, 8, 9}},
      {"conv_transpose k 12 k3x2 g2", {{"input", k2d}}, {2, 12, 10, 10}},
      {"conv_transpose k s4", {{"input", k1d}, {"k", {6, 1, 2}}}, {2, 1, 34}},  // kernel < stride
      {"conv_transpose k s1 d3 op2", {{"input", k1d}, {"k", {6, 1, 2}}}, {2, 1, 8 + 3 + 2 + 1}},
      {"conv_transpose k out7x6", {{"input", k2d}, {"k", {6, 4, 3, 3}}}, {2, 4, 7, 6}},
      {"input x skip | conv_transpose k s2 p1 | add @skip",
       {{"x", {2, 6, 4, 4}}, {"k", {6, 4, 4, 4}}, {"skip", {2, 4, 8, 8}}},
       {2, 4, 8, 8}},
      {"input x skip | add @skip", {{"x", k2d}, {"skip", {1, 6, 1, 9}}}, k2d},
      {"input x skip | add @skip", {{"x", {1, 6, 8, 9}}, {"skip", k2d}}, k2d},
      {"input x other | @other | relu out y | @x | tanh", {{"x", k2d}, {"other", k1d}}, k2d},
      {"moments batch | adjust_moments b scale=2", {{"input", k2d}, {"b", {6}}}, {2, 6}},
      {"mean_conv k s2 out17x19", {{"input", k2d}, {"k", {6, 4, 3, 3}}}, {2, 4, 1, 1}},
      // O = floor((I + p + pe - d (K - 1) - 1) / s) + 1
      {"conv k s3 p1", {{"input", k1d}, {"k", {4, 6, 5}}}, {2, 4, (9 + 2 - 4 - 1) / 3 + 1}},
      {"conv k p1x0 pe0x2 d1x2", {{"input", k2d}, {"k", {4, 6, 3, 3}}}, {2, 4, 7, 7}},
      {"conv k b g3 p1 reflect", {{"input", k3d}, {"k", {9, 2, 3, 3, 3}}}, {2, 9, 7, 8, 9}},
      {"conv k b 12 k3x2 g2 s2", {{"input", k2d}}, {2, 12, 3, 4}},
      {"conv k p9 circular", {{"input", k1d}, {"k", {1, 6, 3}}}, {2, 1, 25}},
      {"relu as a | tanh | cat @a @input", {{"input", k2d}}, {2, 18, 8, 9}},
      {"pad 1x2", {{"input", k2d}}, {2, 6, 10, 13}},
      {"pad 1 e0x3 replicate", {{"input", k2d}}, {2, 6, 9, 13}},
      {"crop 1:-1", {{"input", k3d}}, {2, 6, 5, 6, 7}},
      {"crop :x-3: channels=2:5", {{"input", k2d}}, {2, 3, 8, 3}},
      {"upsample 2 nearest", {{"input", k1d}}, {2, 6, 18}},
      {"upsample 1x3 linear corners", {{"input", k2d}}, {2, 6, 8, 27}},
      {"pixel_shuffle 1x3", {{"input", k2d}}, {2, 2, 8, 27}},
      {"pixel_unshuffle 2x3", {{"input", k2d}}, {2, 36, 4, 3}},
      {"glu channel", {{"input", k2d}}, {2, 3, 8, 9}},
      {"matmul w b", {{"input", k3d}, {"w", {4, 6}}}, {2, 4, 7, 8, 9}},
      {"matmul w b 5", {{"input", k1d}}, {2, 5, 9}},
      {"param v | weight_norm g as w | @input | conv @w", {{"input", k1d}, {"v", {4, 6, 3}}}, {2, 4, 7}},
      {"batch_norm_given m v w b", {{"input", k2d}}, k2d},
      {"rms_norm channel w", {{"input", k2d}}, k2d},
      {"rms_norm last w", {{"input", k2d}}, k2d},
      {"snake a | snake a b | snake a b eps=1e-9 | pow 2", {{"input", k1d}}, k1d},
      {"snake a", {{"input", k1d}, {"a", {1, 6, 1}}}, k1d},
      {"avg_pool 2", {{"input", k3d}}, {2, 6, 3, 4, 4}},
      {"avg_pool 2x3", {{"input", k2d}}, {2, 6, 4, 3}},
      {"max_pool 3 s2", {{"input", k2d}}, {2, 6, 3, 4}},
      {"min_pool 2 s1x3", {{"input", k2d}}, {2, 6, 7, 3}},
      {"max_pool 9", {{"input", k1d}}, {2, 6, 1}},
      {"max_pool 2 sign=w", {{"input", k1d}}, {2, 6, 4}},
      {"layer_norm channel w b", {{"input", k2d}}, k2d},
      {"layer_norm last w b", {{"input", k2d}, {"w", {9}}}, k2d},
      {"layer_norm last 2 w b", {{"input", k2d}, {"w", {8, 9}}, {"b", {8, 9}}}, k2d},
      {"batch_norm w b", {{"input", k2d}, {"w", {6}}}, k2d},
      {"group_norm 3 w b", {{"input", k2d}}, k2d},
      {"instance_norm w b", {{"input", k2d}}, k2d},
      {"rms_norm channel", {{"input", k2d}}, k2d},
      {"moments batch", {{"input", k2d}}, {2, 6}},
      {"moments instance", {{"input", k2d}}, {2, 12}},
      {"moments group 3 as m | @input | normalize group 3 @m w b", {{"input", k2d}}, k2d},
      {"softmax space", {{"input", k2d}}, k2d},
      {"softmax channel", {{"input", k1d}}, k1d},
      {"softmax_stats space", {{"input", k2d}}, {2, 12}},
      {"softmax_stats channel as s | @input | softmax_apply channel @s", {{"input", k2d}}, k2d},
      {"logsumexp channel", {{"input", k2d}}, {2, 1, 8, 9}},
      {"logsumexp space", {{"input", k2d}}, {2, 6, 1, 1}},
      {"sum depth", {{"input", k3d}}, {2, 6, 1, 8, 9}},
      {"mean height", {{"input", k3d}}, {2, 6, 7, 1, 9}},
      {"max width", {{"input", k3d}}, {2, 6, 7, 8, 1}},
      {"min channel", {{"input", k3d}}, {2, 1, 7, 8, 9}},
      {"sum space", {{"input", k1d}}, {2, 6, 1}},
      {"add 1", {{"input", k2d}}, k2d},
      {"sub t", {{"input", k2d}}, k2d},
      {"mul t", {{"input", k2d}, {"t", {}}}, k2d},  // a 0-dim tensor is one value
      {"div t", {{"input", k2d}, {"t", {6, 1, 1}}}, k2d},
      {"minimum t", {{"input", k2d}, {"t", {2, 1, 8, 9}}}, k2d},
      {"maximum t:full", {{"input", k2d}}, k2d},
      {"mean space as m | @input | sub @m", {{"input", k2d}}, k2d},
      {"mean space | add @input", {{"input", k2d}}, k2d},
      {"mean channel as m | @input | mean space | mul @m", {{"input", k2d}}, k2d},
      {"param k | center as c | @input | conv_transpose @c", {{"input", k1d}, {"k", {6, 2, 3}}}, {2, 2, 11}},
      {"param k | pool_taps 2 p1 as c | @input | conv_transpose @c p1",
       {{"input", k1d}, {"k", {6, 2, 4}}},
       {2, 2, 9}},
      {"conv_transpose k p1 step2", {{"input", k1d}, {"k", {6, 4, 3}}}, {2, 4, (9 - 1) / 2 + 1}},
      {"param k | flip g3 as c | @input | conv_transpose @c g3",
       {{"input", k1d}, {"k", {9, 2, 3}}},
       {2, 9, 11}},
      {"param k | flip 1 as c | @input | conv_transpose @c", {{"input", k1d}, {"k", {4, 6}}}, {2, 4, 9}},
      {"param k | widen_taps 2 as c | @input | conv_transpose @c s2",
       {{"input", k1d}, {"k", {6, 2, 3}}},
       {2, 2, 20}},
      {"param k | shuffle_taps 2 as c | @input | conv_transpose @c s2",
       {{"input", k1d}, {"k", {6, 4, 3}}},
       {2, 2, 22}},
      {"param k | scale_channels f as c | @input | conv_transpose @c",
       {{"input", k1d}, {"k", {6, 2, 3}}, {"f", {2}}},
       {2, 2, 11}},
      {"param k | join_channels a as c | @input | conv_transpose @c",
       {{"input", k1d}, {"k", {6, 5, 3}}, {"a", {5, 2, 1}}},
       {2, 2, 11}},
      {"param v | norm_scale w as s | param m | norm_shift @s bias=b as t | @input | mul @s | add @t",
       {{"input", k1d}, {"v", {6}}, {"w", {6}}, {"m", {6}}, {"b", {6}}},
       k1d},
      {"conv_transpose k | relu", {{"input", {0, 6, 9}}, {"k", {6, 2, 3}}}, {0, 2, 11}},  // an empty batch
      {"leaky_relu 0.1 | clamp 0 1 | hardtanh -1 1", {{"input", k2d}}, k2d},
      {"elu | elu 0.5 | softplus | softplus beta=2 threshold=5 | sin | abs | sqrt", {{"input", k2d}}, k2d},
      {"prelu weight", {{"input", k3d}}, k3d},
      {"prelu weight:scalar", {{"input", k2d}}, k2d},
      {"gelu | gelu tanh | relu | tanh | sigmoid | exp | swish | mish | hardswish", {{"input", k3d}}, k3d},
  };
}

TEST(Infer, ShapesFollowTheRules) {
  std::set<std::string_view> met;
  for (const Case& c : cases()) {
    Graph graph;
    ASSERT_NO_THROW(graph = infer(parse_text(c.text), c.shapes)) << c.text;
    EXPECT_EQ(graph[graph.output].shape, c.expected) << c.text;
    for (const Node& node : graph.nodes) met.insert(node.op->name);
  }
  for (const Operation* op : operations())
    EXPECT_TRUE(met.contains(op->name)) << op->name << " has no shape case";
}

TEST(Infer, ParametersGetTheShapeTheirUserExpects) {
  const Graph graph = infer(parse_text("conv_transpose kernel bias 12 k3x1 g2 | group_norm 4 w b | "
                                       "layer_norm last 2 lw lb | add s:scalar | "
                                       "mul t:full | sub c"),
                            {{"input", k2d}});
  const Shapes expected = {{"kernel", {6, 6, 3, 1}}, {"bias", {12}},  {"w", {12}}, {"b", {12}},
                           {"lw", {10, 9}},          {"lb", {10, 9}}, {"s", {1}},  {"c", {12}},
                           {"t", {2, 12, 10, 9}}};
  for (const Node& node : graph.nodes) {
    if (is(node, Op::kParam)) {
      EXPECT_EQ(node.shape, expected.at(node.name)) << node.name;
    }
  }
}

TEST(Infer, DroppedAxesAreGoneForTheCallerOnly) {
  auto visible = [](const char* text) { return visible_shape(infer(parse_text(text), {{"input", k2d}})); };
  EXPECT_EQ(visible("sum channel drop"), (Shape{2, 8, 9}));
  EXPECT_EQ(visible("sum space drop"), (Shape{2, 6}));
  EXPECT_EQ(visible("mean space | logsumexp channel | sum space drop | mul 10"), (Shape{2, 1}));
  EXPECT_EQ(visible("max width drop | min channel drop"), (Shape{2, 8}));
  EXPECT_EQ(visible("max channel"), (Shape{2, 1, 8, 9}));
  // A later stage that broadcasts the axis brings it back.
  EXPECT_EQ(visible("max channel drop | add @input"), k2d);
}

struct Refusal {
  std::string text;
  Shapes shapes;
  std::string sentence;
};

TEST(Infer, RefusesWithASentenceThatNamesTheParameterAndItsValue) {
  const Shape k = {6, 4, 3, 3};
  const std::vector<Refusal> refusals = {
      // Sizes of 0, and negative ones.
      {"relu", {{"input", {2, 0, 8, 9}}}, "in_channels is 0; it must be at least 1"},
      {"relu", {{"input", {2, 6, 0}}}, "width is 0; it must be at least 1"},
      {"relu", {{"input", {2, 6, 0, 9}}}, "height is 0; it must be at least 1"},
      {"relu", {{"input", {2, 6, 0, 8, 9}}}, "depth is 0; it must be at least 1"},
      {"relu", {{"input", {-1, 6, 8, 9}}}, "batch_size is -1; it must be at least 0"},
      {"relu", {{"input", {2, 6}}}, "input has shape 2x6; it must be N C W, N C H W or N C D H W"},
      {"relu", {}, "the shape of the input is missing"},
      {"relu", {{"input", k2d}, {"w", {3}}}, "the pipeline has no tensor named 'w'; it has: input"},
      {"add b", {{"input", k2d}, {"w", {3}}}, "the pipeline has no tensor named 'w'; it has: input, b"},
      {"conv_transpose k",
       {{"input", k2d}, {"k", {6, 0, 3, 3}}},
       "k has shape 6x0x3x3; extents must be at least 1"},
      // The convolution's own.
      {"conv_transpose k s0x1", {{"input", k2d}, {"k", k}}, "stride_h is 0; it must be at least 1"},
      {"conv_transpose k s0 out5", {{"input", k2d}, {"k", k}}, "stride_h is 0; it must be at least 1"},
      {"conv_transpose k s1x0", {{"input", k2d}, {"k", k}}, "stride_w is 0; it must be at least 1"},
      {"conv_transpose k d0", {{"input", k2d}, {"k", k}}, "dilation_h is 0; it must be at least 1"},
      {"conv_transpose k p-1", {{"input", k2d}, {"k", k}}, "padding_h is -1; it must not be negative"},
      {"conv_transpose k out0", {{"input", k2d}, {"k", k}}, "out_h is 0; it must be at least 1"},
      {"conv_transpose k s2 op2",
       {{"input", k2d}, {"k", k}},
       "output_padding_h is 2; it must be smaller than stride_h, which is 2"},
      {"conv_transpose k op-1",
       {{"input", k2d}, {"k", k}},
       "output_padding_h is -1; it must be smaller than stride_h, which is 1"},
      {"conv_transpose k p0x6",
       {{"input", k2d}, {"k", k}},
       "the output's extent along w is -1: input 9, kernel 3, stride 1, padding 6, output_padding 0"},
      {"conv_transpose k g0", {{"input", k2d}, {"k", k}}, "groups is 0; it must be at least 1"},
      {"conv_transpose k g4",
       {{"input", k2d}, {"k", k}},
       "in_channels is 6, which groups = 4 does not divide"},
      {"conv_transpose k 10 k3 g3", {{"input", k2d}}, "out_channels is 10, which groups = 3 does not divide"},
      {"conv_transpose k 0 k3", {{"input", k2d}}, "out_channels is 0; it must be at least 1"},
      {"conv_transpose k 4 k3x0", {{"input", k2d}}, "kernel_w is 0; it must be at least 1"},
      {"conv_transpose k s1x1x1x1", {{"input", k2d}}, "column 19: '1x1x1x1' has more than three extents"},
      {"conv_transpose k s2x1x1",
       {{"input", k2d}, {"k", k}},
       "conv_transpose 2x1x1 has 3 extents; the value has 2 spatial axes"},
      {"conv_transpose k",
       {{"input", k2d}},
       "the shape of k is missing: give the tensor, or write its size as in 'conv_transpose k 64 k3'"},
      {"conv_transpose k",
       {{"input", k2d}, {"k", {6, 4, 3}}},
       "k has shape 6x4x3; for an input of shape 2x6x8x9 it must be (C_in, C_out, one extent per spatial "
       "axis)"},
      {"conv_transpose k",
       {{"input", k2d}, {"k", {5, 4, 3, 3}}},
       "k has 5 input channels (its first extent); the value it meets has 6"},
      {"conv_transpose k 64", {{"input", k2d}, {"k", k}}, "k gives 4 output channels; the pipeline says 64"},
      {"conv_transpose k k3x4", {{"input", k2d}, {"k", k}}, "k has extents 3x3; the pipeline says k3x4"},
      {"conv_transpose k b", {{"input", k2d}, {"k", k}, {"b", {5}}}, "b has shape 5; out_channels is 4"},
      {"mean_conv k",
       {{"input", k2d}},
       "column 1: mean_conv needs out, as in 'mean_conv kernel s2 p1 out63'"},
      // Convolutions.
      {"conv k s0", {{"input", k2d}, {"k", {4, 6, 3, 3}}}, "stride_h is 0; it must be at least 1"},
      {"conv k p-1",
       {{"input", k2d}, {"k", {4, 6, 3, 3}}},
       "padding_h of conv is -1; it must not be negative"},
      {"conv k p8 reflect",
       {{"input", k2d}, {"k", {4, 6, 3, 3}}},
       "padding_h of conv is 8; to reflect it must be smaller than the extent, which is 8"},
      {"conv k p0 pe10 circular",
       {{"input", k1d}, {"k", {4, 6, 3}}},
       "padding_w of conv is 10; to go round it must be at most the extent, which is 9"},
      {"conv k d4",
       {{"input", k2d}, {"k", {4, 6, 3, 3}}},
       "the kernel of conv reaches over 9 along h, more than the padded input's 8: input 8, kernel 3, "
       "dilation "
       "4, padding 0 and 0"},
      {"conv k",
       {{"input", k2d}, {"k", {6, 4, 3, 3}}},
       "k has 4 input channels a group (its second extent); the value it meets has 6"},
      {"conv k g2",
       {{"input", k2d}, {"k", {5, 3, 3, 3}}},
       "out_channels is 5, which groups = 2 does not divide"},
      {"conv k g4",
       {{"input", k2d}, {"k", {4, 6, 3, 3}}},
       "in_channels is 6, which groups = 4 does not divide"},
      {"conv k g4 4 k3", {{"input", k2d}}, "in_channels is 6, which groups = 4 does not divide"},
      {"conv k",
       {{"input", k2d}, {"k", {4, 6, 3}}},
       "k has shape 4x6x3; for an input of shape 2x6x8x9 it must be (C_out, C_in / groups, one extent per "
       "spatial axis)"},
      {"conv k b", {{"input", k2d}, {"k", {4, 6, 1, 1}}, {"b", {6}}}, "b has shape 6; out_channels is 4"},
      {"conv k",
       {{"input", k2d}},
       "the shape of k is missing: give the tensor, or write its size as in 'conv k 64 k3'"},
      {"conv k p4611686018427387904",
       {{"input", k1d}, {"k", {6, 6, 3}}},
       "padding_w is 4611686018427387904; it must be at most 2^40"},
      {"conv k p1099511627776",
       {{"input", k1d}, {"k", {6, 6, 3}}},
       "the padded input has more than 2^40 positions: its extent along w is 2199023255561"},
      {"matmul w", {{"input", k2d}, {"w", {4, 5}}}, "w has shape 4x5; for 6 channels it must be (C_out, 6)"},
      {"matmul w",
       {{"input", k2d}},
       "the shape of w is missing: give the tensor, or write its size as in 'matmul w 64'"},
      // Moves.
      {"max_pool 2 as y | @input | cat @y",
       {{"input", k2d}},
       "cat of shapes 2x6x8x9 and 2x6x4x4; they may differ in channels alone"},
      {"cat t", {{"input", k2d}}, "cat of shapes 2x6x8x9 and 6; they may differ in channels alone"},
      {"pad -1", {{"input", k2d}}, "padding_h of pad is -1; it must not be negative"},
      {"pad 8x1 reflect",
       {{"input", k2d}},
       "padding_h of pad is 8; to reflect it must be smaller than the extent, which is 8"},
      {"pad 1 reflect value=2", {{"input", k2d}}, "pad reflect has no value"},
      {"pad 1x2x3", {{"input", k2d}}, "pad 1x2x3 has 3 extents; the value has 2 spatial axes"},
      {"pad 1000000000000",
       {{"input", k1d}},
       "the value of pad has shape 2x6x2000000000009; a tensor has at most 2^40 elements"},
      {"pad 4611686018427387904",
       {{"input", k1d}},
       "the padded extent overflows 64 bits: 4611686018427387913 + 4611686018427387904"},
      {"crop 5:3", {{"input", k2d}}, "crop 5:3 leaves nothing of 8 elements along h"},
      {"crop :x9:", {{"input", k2d}}, "crop 9: leaves nothing of 9 elements along w"},
      {"crop channels=6:", {{"input", k2d}}, "crop 6: leaves nothing of 6 channels"},
      {"crop channels=1:x2:", {{"input", k2d}}, "channels of crop are one slice, not 1:x2:"},
      {"crop 1:x2:x3:", {{"input", k2d}}, "crop 1:x2:x3: has 3 slices; the value has 2 spatial axes"},
      {"upsample 0 nearest", {{"input", k2d}}, "upsample by 0 along h; it must be at least 1"},
      {"upsample 2 nearest corners", {{"input", k2d}}, "upsample nearest has no corners"},
      {"upsample 1000000 nearest",
       {{"input", k2d}},
       "the value of upsample has shape 2x6x8000000x9000000; a tensor has at most 2^40 elements"},
      {"pixel_shuffle 2", {{"input", k2d}}, "pixel_shuffle 2x2 meets 6 channels, which 4 does not divide"},
      {"pixel_unshuffle 2",
       {{"input", k2d}},
       "pixel_unshuffle by 2 along w, which does not divide the extent 9"},
      {"pixel_shuffle 4294967296x4294967296",
       {{"input", k2d}},
       "the product of factors overflows 64 bits: 4294967296 * 4294967296"},
      {"glu channel", {{"input", {2, 5, 3}}}, "glu meets 5 channels; their number must be even"},
      // Parameters of a channel each.
      {"snake a",
       {{"input", k2d}, {"a", {5}}},
       "alpha of snake has shape 5; it must hold a value for each of 6 channels"},
      {"batch_norm_given m v w",
       {{"input", k2d}, {"v", {5}}},
       "var of batch_norm_given has shape 5; it must hold 6 values"},
      {"batch_norm_given m v eps=-1",
       {{"input", k2d}},
       "eps of batch_norm_given is -1; it must be a number that is not negative"},
      {"param v | weight_norm g as w | @input | conv @w",
       {{"input", k1d}, {"v", {4, 6, 3}}, {"g", {6}}},
       "g of weight_norm has shape 6; it must hold 4 values"},
      {"weight_norm g | relu",
       {{"input", k1d}},
       "weight_norm meets a value of shape 2x6x9; it is for parameters"},
      // Pools.
      {"max_pool 0", {{"input", k2d}}, "the window of max_pool along h is 0; it must be at least 1"},
      {"avg_pool 2 s2x0", {{"input", k2d}}, "the stride of avg_pool along w is 0; it must be at least 1"},
      {"min_pool 1x10",
       {{"input", k2d}},
       "min_pool with a window of 10 along w leaves nothing of an extent of 9"},
      {"max_pool 2 sign=w",
       {{"input", k2d}, {"w", {5}}},
       "the sign of max_pool has shape 5; the value it meets has 6 channels"},
      // Norms.
      {"group_norm 4", {{"input", k2d}}, "num_groups is 4, which does not divide the 6 channels"},
      {"group_norm 0", {{"input", k2d}}, "num_groups is 0; it must be at least 1"},
      {"batch_norm",
       {{"input", {1, 6, 1, 1}}},
       "batch_norm has statistics over a single value: the value it meets has shape 1x6x1x1"},
      {"instance_norm",
       {{"input", {4, 6, 1, 1}}},
       "instance_norm has statistics over a single value: the value it meets has shape 4x6x1x1"},
      {"batch_norm w b", {{"input", k2d}, {"w", {5}}}, "w of batch_norm has shape 5; it must hold 6 values"},
      {"layer_norm last w",
       {{"input", k2d}, {"w", {8}}},
       "w of layer_norm has shape 8; it must hold 9 values"},
      {"layer_norm last 3",
       {{"input", k2d}},
       "layer_norm is over the last 3 axes; the value has 2 spatial axes"},
      {"layer_norm channel eps=-1",
       {{"input", k2d}},
       "eps of layer_norm is -1; it must be a number that is not negative"},
      {"batch_norm eps=inf",
       {{"input", k2d}},
       "eps of batch_norm is inf; it must be a number that is not negative"},
      {"moments batch as m | @input | normalize instance @m",
       {{"input", k2d}},
       "the moments of normalize have shape 2x6; it must be 2x12"},
      // Reductions and softmax.
      {"sum depth", {{"input", k2d}}, "sum depth: the value has shape 2x6x8x9, without that axis"},
      {"max height", {{"input", k1d}}, "max height: the value has shape 2x6x9, without that axis"},
      {"relu as s | @input | softmax_apply space @s",
       {{"input", k2d}},
       "the stats of softmax_apply have shape 2x6x8x9; it must be 2x12"},
      {"moments batch | relu",
       {{"input", k2d}},
       "relu meets a value of shape 2x6; it must be N C W, N C H W or N C D H W"},
      // Operands.
      {"add b", {{"input", k2d}, {"b", {5}}}, "b has 5 values; the value it meets has 6 channels"},
      {"add b", {{"input", k2d}, {"b", {8, 8}}}, "b has shape 8x8, which does not broadcast to 2x6x8x9"},
      {"add b",
       {{"input", k2d}, {"b", {1, 2, 6, 8, 9}}},
       "b has shape 1x2x6x8x9, which does not broadcast to 2x6x8x9"},
      {"add b:scalar", {{"input", k2d}, {"b", {6}}}, "b has shape 6, but the pipeline says b:scalar"},
      {"add b:full", {{"input", k2d}, {"b", {6}}}, "b has shape 6, but the pipeline says b:full"},
      {"max_pool 2 as y | @input | add @y",
       {{"input", k2d}},
       "add of shapes 2x6x8x9 and 2x6x4x4, which do not broadcast"},
      // Weight-side stages.
      {"param k | relu as c | @input | conv_transpose @c", {{"input", k1d}}, "the shape of k is missing"},
      {"param b | relu as c | @input | add @c",
       {{"input", k1d}, {"b", {6}}},
       "relu meets a value of shape 6; it must be N C W, N C H W or N C D H W"},
      {"param b | pool_taps 2 as c | @input | add @c",
       {{"input", k1d}, {"b", {6}}},
       "pool_taps meets a value of shape 6; it must be (C_in, C_out, one extent per spatial axis)"},
      {"param k | pool_taps 0 as c | @input | conv_transpose @c",
       {{"input", k1d}, {"k", {6, 2, 3}}},
       "the window of pool_taps is 0; it must be at least 1"},
      // Products that overflow.
      {"relu",
       {{"input", {kHuge, 6, 8, 9}}},
       "the value of input has shape 4611686018427387904x6x8x9; a tensor has at most 2^40 elements"},
      {"conv_transpose k s4611686018427387904",
       {{"input", k1d}, {"k", {6, 1, 3}}},
       "stride_w is 4611686018427387904; it must be at most 2^40"},
      {"conv_transpose k s4611686018427387904 out5",
       {{"input", k1d}, {"k", {6, 1, 3}}},
       "stride_w is 4611686018427387904; it must be at most 2^40"},
      {"conv_transpose k p4611686018427387904",
       {{"input", k1d}, {"k", {6, 1, 3}}},
       "padding_w is 4611686018427387904; it must be at most 2^40"},
      {"conv_transpose k 4611686018427387904 k1000",
       {{"input", k1d}},
       "the value of k has shape 6x4611686018427387904x1000; a tensor has at most 2^40 elements"},
      {"input x skip | add @skip", {{"x", k2d}}, "the shape of skip is missing"},
      {"input x skip | add @skip", {{"skip", k2d}}, "the shape of x is missing"},
      {"input x skip | add @skip",
       {{"x", k2d}, {"skip", k2d}, {"input", k2d}},
       "the pipeline has no tensor named 'input'; it has: x, skip"},
      {"input x skip | add @skip",
       {{"x", k2d}, {"skip", {2, 6}}},
       "skip has shape 2x6; it must be N C W, N C H W or N C D H W"},
      {"input x skip | add @skip", {{"x", k2d}, {"skip", {2, 0, 8, 9}}}, "in_channels of skip is 0"},
      {"input x skip | add @skip",
       {{"x", k2d}, {"skip", {3, 6, 8, 9}}},
       "batch_size of x is 2; it must be 1 or that of the other inputs, 3"},
      {"input x skip | add @skip",
       {{"x", {0, 6, 8, 9}}, {"skip", {1, 6, 8, 9}}},
       "batch_size of x is 0; it must be 1 or that of the other inputs, 1"},
      {"input x skip | add @skip",
       {{"x", k2d}, {"skip", k1d}},
       "add of shapes 2x6x8x9 and 2x6x9, which do not broadcast"},
      {"conv_transpose k s1000000000000000000",
       {{"input", {2, 6, 9}}, {"k", {6, 6, 3}}},
       "stride_w is 1000000000000000000; it must be at most 2^40"},
  };
  for (const Refusal& r : refusals) {
    try {
      infer(parse_text(r.text), r.shapes);
      ADD_FAILURE() << r.text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kInvalid) << r.text;
      EXPECT_EQ(std::string(error.what()).substr(0, r.sentence.size()), r.sentence)
          << r.text << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace upweave
