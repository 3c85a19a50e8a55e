#pragma once
// The laws of convolutions, as law_cases.h has those of everything else.
#include "law_cases.h"
#include "random_pipeline.h"

namespace upweave::law_cases {

// conv's kernel is (C_out, C_in/groups, K...).
inline const Shapes kConv = {{"input", {2, 4, 6, 7}}, {"kernel", {6, 4, 3, 3}}};
inline const Shapes kConv1d = {{"input", {2, 4, 9}}, {"kernel", {6, 4, 3}}};
inline const Shapes kGrouped = {{"input", {2, 4, 6, 7}}, {"kernel", {6, 2, 3, 3}}};

inline std::vector<Case> conv_firing_cases() {
  return {
      {"conv-as-transposed", "conv kernel bias p1",
       "param kernel | flip as v1 | @input | conv_transpose @v1 bias p1 out6x7", "", kConv},
      {"conv-as-transposed", "conv kernel p1x0 d2",
       "param kernel | flip as v1 | @input | conv_transpose @v1 p3x4 d2 out4x3", "", kConv},
      {"conv-as-transposed", "conv kernel g2",
       "param kernel | flip g2 as v1 | @input | conv_transpose @v1 p2 g2 out4x5", "", kGrouped},
      {"conv-as-transposed", "conv kernel p2 pe0",
       "param kernel | flip as v1 | @input | conv_transpose @v1 out9", "", kConv1d},
      {"conv-as-transposed", "conv kernel s2 p1",
       "param kernel | flip as v1 | @input | conv_transpose @v1 p1 step2 out3x4", "", kConv},
      {"conv-as-transposed", "conv kernel p3",
       "param kernel | flip as v1 | @input | conv_transpose @v1 out12 | pad 1 e0", "", kConv1d},

      {"pad-into-conv", "pad 2 e0 | conv kernel", "conv kernel p2 pe0", "", kConv1d},
      {"pad-into-conv", "pad 1x2 | conv kernel p1", "conv kernel p2x3 pe2x3", "", kConv},

      {"split-padding", "conv kernel p1 reflect", "pad 1 e1 reflect | conv kernel", "", kConv},
      {"split-padding", "conv kernel p1 pe2 s2 circular", "pad 1 e2 circular | conv kernel s2", "", kConv1d},

      {"upsample-conv", "upsample 2 nearest | conv_transpose kernel p1",
       "param kernel | widen_taps 2 as v1 | @input | conv_transpose @v1 s2 p1 out12x14"},
      {"upsample-conv", "upsample 1x3 nearest | conv_transpose kernel d2x1",
       "param kernel | widen_taps 1x3 as v1 | @input | conv_transpose @v1 s1x3 d2x1 out10x23"},
      {"upsample-conv",
       "upsample 2 nearest | conv_transpose kernel p1 g2",
       "param kernel | widen_taps 2 as v1 | @input | conv_transpose @v1 s2 p1 g2 out12x14",
       "",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 3, 3, 3}}}},

      {"pixel-shuffle-conv",
       "conv_transpose kernel p1 | pixel_shuffle 2",
       "param kernel | shuffle_taps 2 as v1 | @input | conv_transpose @v1 s2 p2 out12x14",
       "",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 8, 3, 3}}}},

      {"crop-before-pointwise", "conv_transpose kernel | add t | relu | crop 1:-1",
       "conv_transpose kernel | add t | crop 1:-1 | relu"},
      {"crop-conv", "conv_transpose kernel s2 p1 | crop 1:-2x0:", "conv_transpose kernel s2 p2x1 out8x13"},

      {"given-norm", "relu | batch_norm_given m v w b",
       "relu as v1 | param v | norm_scale w eps=1e-05 as v2 | @v1 | mul @v2 as v3 | param m | norm_shift @v2 "
       "bias=b as v4 | @v3 | add @v4"},
      {"conv-as-transposed",
       "matmul w",
       "param w | flip 2 as v1 | @input | conv_transpose @v1 out6x7",
       "",
       {{"input", {2, 4, 6, 7}}, {"w", {5, 4}}}},

      {"scale-into-weights", "conv_transpose kernel s2 | mul t",
       "param kernel | scale_channels t as v1 | @input | conv_transpose @v1 s2"},
      {"scale-into-weights", "conv_transpose kernel | mul t:scalar",
       "param kernel | scale_channels t:scalar as v1 | @input | conv_transpose @v1"},

      {"join-convs",
       "conv_transpose kernel p1 | conv_transpose next",
       "param kernel | join_channels next as v1 | @input | conv_transpose @v1 p1",
       "",
       {{"input", {2, 3, 6, 7}}, {"kernel", {3, 8, 3, 3}}, {"next", {8, 2, 1, 1}}}},
      {"join-convs",
       "conv_transpose kernel p1 | add t | conv_transpose next",
       "param kernel | join_channels next as v1 | @input | conv_transpose @v1 p1 as v2 | param t | "
       "join_channels next as v3 | @v2 | add @v3",
       "",
       {{"input", {2, 3, 6, 7}}, {"kernel", {3, 8, 3, 3}}, {"next", {8, 2, 1, 1}}}},
      {"join-convs",
       "conv_transpose kernel | conv_transpose next p1",
       "param kernel | join_channels next as v1 | @input | conv_transpose @v1 p1",
       "",
       {{"input", {2, 3, 6, 7}}, {"kernel", {3, 8, 1, 1}}, {"next", {8, 2, 3, 3}}}},
  };
}

inline std::vector<Case> conv_refusing_cases() {
  return {
      {"conv-as-transposed", "conv kernel p1 reflect", "", "zeros beyond the borders", kConv},
      {"pad-into-conv", "pad 1 value=2 | conv kernel", "", "zeros are added", kConv},
      {"pad-into-conv", "pad 1 reflect | conv kernel", "", "zeros are added", kConv},
      {"pad-into-conv", "pad 1 as y | conv kernel out z | @y", "", "no other reader", kConv},
      {"split-padding", "conv kernel p1", "", "a border that is not zeros", kConv},
      {"upsample-conv", "upsample 2 linear | conv_transpose kernel", "", "nearest"},
      {"upsample-conv", "upsample 2 nearest | conv_transpose kernel s2", "", "stride 1"},
      {"upsample-conv", "upsample 2 nearest | conv_transpose kernel d2", "", "no dilation"},
      {"upsample-conv", "upsample 2 nearest as y | conv_transpose kernel out z | @y", "", "no other reader"},
      {"pixel-shuffle-conv",
       "conv_transpose kernel s2 | pixel_shuffle 2",
       "",
       "stride 1",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 8, 3, 3}}}},
      {"pixel-shuffle-conv",
       "conv_transpose kernel d2 | pixel_shuffle 2",
       "",
       "no dilation",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 8, 3, 3}}}},
      {"pixel-shuffle-conv",
       "conv_transpose kernel | relu | pixel_shuffle 2",
       "",
       "right behind a convolution",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 8, 3, 3}}}},
      {"crop-before-pointwise", "conv_transpose kernel as y | relu as z | crop 1:-1 out c | @z", "",
       "no other reader"},
      {"crop-before-pointwise", "mul @input | crop 1:-1", "", "the operand is the same over space"},
      {"crop-conv", "conv_transpose kernel as y | crop 1:-1 out c | @y", "", "no other reader"},
      {"given-norm", "batch_norm w b", "", "statistics are given"},
      {"scale-into-weights", "conv_transpose kernel as y | mul t out z | @y", "", "no other reader"},
      {"scale-into-weights", "conv_transpose kernel | mul 2", "", "a value a channel among the parameters"},
      {"scale-into-weights", "conv_transpose kernel | relu | mul t", "", "right behind a convolution"},
      {"join-convs",
       "conv_transpose kernel p1 | conv_transpose next",
       "",
       "fewer products",
       {{"input", {2, 8, 6, 7}}, {"kernel", {8, 2, 3, 3}}, {"next", {2, 8, 1, 1}}}},
      {"join-convs",
       "conv_transpose kernel | add t | conv_transpose next p1",
       "",
       "no bias behind single taps in front",
       {{"input", {2, 3, 6, 7}}, {"kernel", {3, 8, 1, 1}}, {"next", {8, 2, 3, 3}}}},
      {"join-convs",
       "conv_transpose kernel | relu | conv_transpose next",
       "",
       "nothing but a bias between",
       {{"input", {2, 3, 6, 7}}, {"kernel", {3, 8, 3, 3}}, {"next", {8, 2, 1, 1}}}},
      {"join-convs",
       "conv_transpose kernel p1 g2 | conv_transpose next",
       "",
       "no groups",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 4, 3, 3}}, {"next", {8, 2, 1, 1}}}},
  };
}

inline bool parses(const std::string& text, const Shapes& shapes) {
  try {
    if (!text.empty()) infer(parse_text(text), shapes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Up to three convolutions with what the laws of this file meet around them; all tensors are small.
inline std::pair<std::string, Shapes> random_convolutions(testing::Random& rng) {
  const size_t spatial = static_cast<size_t>(rng.integer(1, 2));
  Shape at = {rng.integer(1, 2), rng.pick<int64_t>({2, 4})};
  for (size_t a = 0; a < spatial; ++a) at.push_back(rng.integer(4, 7));
  Shapes shapes = {{"input", at}};
  std::string text;
  int names = 0;
  const auto say = [&](const std::string& stage) { text += (text.empty() ? "" : " | ") + stage; };
  const auto name = [&](const char* what) { return what + std::to_string(names++); };
  const int64_t convolutions = rng.integer(1, 3);
  for (int64_t i = 0; i < convolutions; ++i) {
    const std::string before = text;
    if (rng.chance(0.3)) say("upsample 2 nearest");
    if (rng.chance(0.3)) say(rng.pick<std::string>({"pad 1", "pad 2 e0", "pad 1 reflect", "pad 1 value=3"}));
    const int64_t channels = rng.pick<int64_t>({2, 4, 8}), k = rng.pick<int64_t>({1, 1, 3, 3, 2});
    const int64_t groups = rng.chance(0.2) ? 2 : 1;
    const std::string kernel = name("kernel");
    std::string stage;
    if (rng.chance(0.15)) {
      stage = "matmul " + kernel;
    } else if (rng.chance(0.25)) {
      stage = fmt::format("conv_transpose {} {} k{} s{} p{} g{}", kernel, channels, k, rng.integer(1, 2),
                          (k - 1) / 2, groups);
    } else {
      const int64_t d = k == 3 && rng.chance(0.2) ? 2 : 1;
      stage = fmt::format("conv {} {}{} k{} s{} p{} d{} g{} {}", kernel,
                          rng.chance(0.3) ? name("bias") + " " : "", channels, k,
                          rng.pick<int64_t>({1, 1, 1, 2}), rng.integer(0, 2), d, groups,
                          rng.pick<std::string>({"zeros", "zeros", "reflect", "replicate", "circular"}));
    }
    // Padding of 2 cannot be reflected or a kernel not fit everywhere: such a stage is left out.
    const std::string in_front = text;
    say(stage);
    Shapes known = shapes;
    if (stage.starts_with("matmul") && parses(in_front, shapes)) {
      const Graph so_far = in_front.empty() ? Graph{} : infer(parse_text(in_front), shapes);
      const int64_t c_in = in_front.empty() ? at[1] : so_far[so_far.output].shape[1];
      known[kernel] = {channels, c_in};
    }
    if (!parses(text, known)) {
      text = before;
      continue;
    }
    shapes = known;
    if (rng.chance(0.2)) say("mul " + name("scale"));
    if (rng.chance(0.2)) say("add " + name("shift"));
    if (rng.chance(0.2)) say(fmt::format("batch_norm_given {} {}", name("mean"), name("var")));
    if (rng.chance(0.2)) say("relu");
    if (channels >= 4 && spatial == 2 && rng.chance(0.3)) say("pixel_shuffle 2");
    const std::string uncropped = text;
    if (rng.chance(0.3)) {
      say(rng.pick<std::string>({"crop 1:", "crop :-1", "crop 1:-1"}));
      if (!parses(text, shapes)) text = uncropped;
    }
  }
  if (text.empty()) text = "relu";
  return {text, shapes};
}

}  // namespace upweave::law_cases
