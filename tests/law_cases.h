#pragma once
// Where each law fires and what it makes, and where it does not because a clause of its condition fails.
#include <string>
#include <vector>

#include "graph/text.h"

namespace upweave::law_cases {

struct Case {
  std::string law, text, expected;  // expected: the text after the law; empty if it must not fire
  std::string clause = {};          // of the condition, that fails
  Shapes shapes = {{"input", {2, 4, 6, 7}}, {"kernel", {4, 6, 3, 3}}};
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.law << " on " << c.text; }

inline Graph graph_of(const Case& c) {
  const Graph parsed = parse_text(c.text);
  Shapes shapes = c.shapes;
  if (parameter_names(parsed).empty() || c.text.find("kernel") == c.text.npos) shapes.erase("kernel");
  return infer(parsed, shapes);
}

inline const Shapes k3d = {{"input", {2, 3, 1, 4, 5}}};
inline const Shapes kStride2 = {{"input", {2, 4, 5, 4}}, {"kernel", {4, 3, 3, 5}}};

inline std::vector<Case> firing_cases() {
  return {
      {"drop-identity", "mul 1 | relu", "relu"},
      {"drop-identity", "div 1 | relu", "relu"},
      {"drop-identity", "relu | max_pool 1", "relu"},
      {"drop-identity", "relu | min_pool 1 sign=w | tanh", "relu | tanh"},
      {"drop-identity", "avg_pool 1 s1 | relu", "relu"},
      {"drop-identity", "mean space | sum space drop", "mean space"},
      {"drop-identity", "relu | max depth", "relu", "", k3d},
      {"drop-identity", "relu as a | mul 1 as b | add @a", "relu as a | add @a"},

      {"clamp-to-nan", "relu | clamp nan 1", "relu | mul nan"},
      {"clamp-to-nan", "hardtanh 0 nan | relu", "mul nan | relu"},

      {"split-bias", "conv_transpose kernel bias s2 p1", "conv_transpose kernel s2 p1 | add bias"},
      {"split-bias", "conv_transpose kernel bias as y | relu | add @y",
       "conv_transpose kernel | add bias as y | relu | add @y"},

      {"drop-shift", "add 1 | layer_norm channel", "layer_norm channel"},
      {"drop-shift", "sub t:scalar | layer_norm channel w b", "layer_norm channel w b"},
      {"drop-shift", "add t | layer_norm last", "layer_norm last"},
      {"drop-shift", "add t | layer_norm last 2", "layer_norm last 2"},
      {"drop-shift", "add t | batch_norm w b", "batch_norm w b"},
      {"drop-shift", "sub 2 | batch_norm", "batch_norm"},
      {"drop-shift", "add t | instance_norm", "instance_norm"},
      {"drop-shift", "add t | group_norm 4", "group_norm 4"},
      {"drop-shift", "add t:scalar | group_norm 2", "group_norm 2"},
      {"drop-shift", "relu as y | mean space as m | @y | sub @m | instance_norm",
       "relu as y | instance_norm"},

      {"drop-scale", "mul 2 | batch_norm w b", "batch_norm w b eps=2.5e-06"},
      {"drop-scale", "mul -2 | layer_norm channel eps=0.4", "layer_norm channel eps=0.1 | mul -1"},
      {"drop-scale", "div 2 | instance_norm eps=1", "instance_norm eps=4"},
      {"drop-scale", "mul 1e-20 | group_norm 2 eps=0", "group_norm 2 eps=0"},

      {"center-weights", "conv_transpose kernel s2 | layer_norm channel",
       "param kernel | center as v1 | @input | conv_transpose @v1 s2 | rms_norm channel"},
      {"center-weights", "conv_transpose kernel s2 | add bias | layer_norm channel w b eps=0.001",
       "param kernel | center as v1 | @input | conv_transpose @v1 s2 as v2 | param bias | center as v3 | @v2 "
       "| "
       "add @v3 | rms_norm channel w b eps=0.001"},

      {"adjust-moments", "add t | moments batch", "moments batch | adjust_moments t"},
      {"adjust-moments", "add t | moments instance", "moments instance | adjust_moments t"},
      {"adjust-moments", "add t | moments group 4", "moments group 4 | adjust_moments t"},
      {"adjust-moments", "add t:scalar | moments group 2", "moments group 2 | adjust_moments t:scalar"},
      {"adjust-moments", "sub 2 | moments batch", "moments batch | adjust_moments -2"},
      {"adjust-moments", "div -4 | moments instance", "moments instance | adjust_moments scale=-0.25"},
      {"adjust-moments", "relu as c | add t | moments batch out stats | @c | batch_norm",
       "relu as c | batch_norm as v1 | @c | moments batch | adjust_moments t out stats | @v1"},
      {"adjust-moments",
       "max space | add t:full | moments instance",
       "max space | moments instance | adjust_moments t:full",
       "",
       {{"input", {1, 4, 5, 7}}}},
      {"adjust-moments", "add t | moments batch | adjust_moments 3",
       "moments batch | adjust_moments t | adjust_moments 3"},

      {"share-equal", "relu as a | @input | relu | mul @a", "relu as a | mul @a"},
      {"share-equal", "moments batch out stats | @input | moments batch as m | @input | normalize batch @m",
       "moments batch out stats | @input | normalize batch @stats"},
      {"share-equal", "avg_pool 2x1 out a | @input | avg_pool 2x1 out b | tanh",
       "avg_pool 2x1 out a | @a out b | tanh"},

      {"split-norm", "batch_norm w b", "moments batch as v1 | @input | normalize batch @v1 w b"},
      {"split-norm", "relu | group_norm 2 eps=0.1",
       "relu as v1 | moments group 2 as v2 | @v1 | normalize group 2 @v2 eps=0.1"},
      {"split-norm", "instance_norm w", "moments instance as v1 | @input | normalize instance @v1 w"},

      {"shorten-stride", "max_pool 2 s9", "max_pool 2 s6x7"},
      {"shorten-stride", "avg_pool 2x3 s2x100", "avg_pool 2x3 s2x7"},
      {"shorten-stride", "min_pool 1 s9223372036854775807 sign=w", "min_pool 1 s6x7 sign=w"},

      {"merge-pools", "max_pool 2 | max_pool 3x1", "max_pool 6x2"},
      {"merge-pools", "min_pool 1x2 s1x2 | min_pool 2", "min_pool 2x4"},
      {"merge-pools", "avg_pool 2 | avg_pool 1x3", "avg_pool 2x6"},
      {"merge-pools", "max_pool 2 sign=w | max_pool 2 sign=w", "max_pool 4 sign=w"},

      {"pool-before-monotone", "tanh | max_pool 2", "max_pool 2 | tanh"},
      {"pool-before-monotone", "relu | min_pool 2 s1", "min_pool 2 s1 | relu"},
      {"pool-before-monotone", "clamp 0 1 | max_pool 2", "max_pool 2 | clamp 0 1"},
      {"pool-before-monotone", "leaky_relu 0.2 | max_pool 2", "max_pool 2 | leaky_relu 0.2"},
      {"pool-before-monotone", "elu | min_pool 2", "min_pool 2 | elu"},
      {"pool-before-monotone", "add 1 | max_pool 2", "max_pool 2 | add 1"},
      {"pool-before-monotone", "sub t | max_pool 2", "max_pool 2 | sub t"},
      {"pool-before-monotone", "minimum t | max_pool 2", "max_pool 2 | minimum t"},
      {"pool-before-monotone", "mul 2 | max_pool 2", "max_pool 2 | mul 2"},
      {"pool-before-monotone", "mul -2 | max_pool 2", "min_pool 2 | mul -2"},
      {"pool-before-monotone", "div -2 | min_pool 2", "max_pool 2 | div -2"},
      {"pool-before-monotone", "mul -2 | max_pool 2 sign=w", "min_pool 2 sign=w | mul -2"},
      {"pool-before-monotone", "mul t | max_pool 2", "max_pool 2 sign=t | mul t"},
      {"pool-before-monotone", "mul t:scalar | min_pool 2", "min_pool 2 sign=t:scalar | mul t:scalar"},
      {"pool-before-monotone", "moments batch as m | @input | normalize batch @m w b | max_pool 2",
       "max_pool 2 sign=w as v1 | @input | moments batch as m | @v1 | normalize batch @m w b"},
      {"pool-before-monotone", "moments group 2 as m | @input | normalize group 2 @m | max_pool 2",
       "max_pool 2 as v1 | @input | moments group 2 as m | @v1 | normalize group 2 @m"},

      {"average-before-linear", "add 1 | avg_pool 2", "avg_pool 2 | add 1"},
      {"average-before-linear", "mul t | avg_pool 2 s1", "avg_pool 2 s1 | mul t"},
      {"average-before-linear", "div 2 | mean space", "mean space | div 2"},
      {"average-before-linear", "sub t as y | mean space as m | @y | mul @m",
       "sub t as y | @input | mean space | sub t as m | @y | mul @m"},
      {"average-before-linear", "moments instance as m | @input | normalize instance @m w b | mean space",
       "mean space as v1 | @input | moments instance as m | @v1 | normalize instance @m w b"},

      {"pool-kernel", "conv_transpose kernel s2 p1 op1 | avg_pool 2",
       "param kernel | pool_taps 2 p1 as v1 | @input | conv_transpose @v1 s1 p1 out5", "", kStride2},
      {"pool-kernel", "conv_transpose kernel s4x3 p2x1 | avg_pool 2x3",
       "param kernel | pool_taps 2x3 p2x1 as v1 | @input | conv_transpose @v1 s2x1 p1 out7x4", "", kStride2},
      {"pool-kernel", "conv_transpose kernel s2 p0 g2 | avg_pool 2x1",
       "param kernel | pool_taps 2x1 p0 as v1 | @input | conv_transpose @v1 s1x2 p0 g2 out5x11", "",
       kStride2},

      {"mean-without-conv", "conv_transpose kernel s2x1 p1 d2x1 | mean space",
       "mean_conv kernel s2x1 p1 d2x1 out13x7"},
      {"mean-without-conv", "conv_transpose kernel p2x1 g2 | mean space drop",
       "mean_conv kernel p2x1 g2 out4x7"},

      {"bounded-softmax", "clamp 0 1 | softmax space",
       "clamp 0 1 | sub 1 | exp as v1 | sum space as v2 | @v1 | div @v2"},
      {"bounded-softmax", "tanh | softmax space",
       "tanh | sub 1 | exp as v1 | sum space as v2 | @v1 | div @v2"},
      {"bounded-softmax", "clamp 3 -2 | softmax space",
       "clamp 3 -2 | sub -2 | exp as v1 | sum space as v2 | @v1 | div @v2"},

      {"split-softmax", "relu | softmax space",
       "relu as v1 | softmax_stats space as v2 | @v1 | softmax_apply space @v2"},

      {"crop-outputs", "conv_transpose kernel | max_pool 3", "conv_transpose kernel out6x9 | max_pool 3"},
      {"crop-outputs", "conv_transpose kernel | add t | layer_norm channel | gelu | avg_pool 5x2 s1x5",
       "conv_transpose kernel out8x7 | add t | layer_norm channel | gelu | avg_pool 5x2 s1x5"},
  };
}

inline std::vector<Case> refusing_cases() {
  return {
      {"drop-identity", "mul 2 | relu", "", "the factor is 1"},
      {"drop-identity", "mul t | relu", "", "the factor is a number"},
      {"drop-identity", "add 1 | relu", "", "it is a factor"},
      {"drop-identity", "relu | max_pool 1x2", "", "windows of one element"},
      {"drop-identity", "relu | avg_pool 1 s2", "", "windows that leave nothing out"},
      {"drop-identity", "mean width | relu", "", "the axis has extent 1"},
      {"drop-identity", "relu | logsumexp channel", "", "the reduction of one element is the element"},
      {"drop-identity", "mul 1", "", "something is left to do"},
      {"clamp-to-nan", "clamp -inf inf", "", "a limit is NaN"},

      {"share-equal", "relu as a | @input | tanh | mul @a", "", "the same operation"},
      {"share-equal", "relu as a | relu | mul @a", "", "the same operand"},
      {"share-equal", "leaky_relu 0.1 as a | @input | leaky_relu 0.2 | mul @a", "", "the same attributes"},

      {"adjust-moments", "add t | moments batch as m | @input | normalize batch @m", "",
       "an output reads them"},
      {"adjust-moments", "add t:full | moments batch", "", "one value over batch and space"},
      {"adjust-moments", "add t | moments group 2", "", "one value for the group's channels"},
      {"adjust-moments", "relu as y | mean space as m | @y | add @m | moments instance", "", "a parameter"},
      {"adjust-moments", "sub t | moments batch", "", "it is added"},
      {"adjust-moments", "add inf | moments batch", "", "a finite number"},
      {"adjust-moments", "mul t | moments batch", "", "a number"},
      {"adjust-moments", "mul 0 | moments batch", "", "not 0"},
      {"adjust-moments", "mul 1e-18 | moments batch", "", "its square does not vanish"},

      {"split-bias", "conv_transpose kernel | relu", "", "there is a bias"},

      {"drop-shift", "add t | layer_norm channel", "", "one value for all channels of a voxel"},
      {"drop-shift", "add t:full | layer_norm last", "", "one value in the trailing axes"},
      {"drop-shift", "add t:full | batch_norm", "", "one value over batch and space"},
      {"drop-shift", "relu as y | mean space as m | @y | sub @m | batch_norm", "",
       "one value over the batch"},
      {"drop-shift", "add t:full | instance_norm", "", "one value over space"},
      {"drop-shift", "add t | group_norm 2", "", "one value for the group's channels"},
      {"drop-shift", "add inf | batch_norm", "", "a finite number"},
      {"drop-shift", "mul t | batch_norm", "", "it is a shift"},
      {"drop-shift", "add 1 | relu | batch_norm", "", "right before the norm"},
      {"drop-shift", "mean space | add @input | batch_norm", "", "the shifted value has the norm's shape"},

      {"drop-scale", "mul t:scalar | batch_norm", "", "a number"},
      {"drop-scale", "mul 0 | batch_norm", "", "not 0"},
      {"drop-scale", "mul inf | batch_norm", "", "finite"},
      {"drop-scale", "div inf | batch_norm", "", "its reciprocal is not 0"},
      {"drop-scale", "mul 1e13 | batch_norm", "", "eps / s^2 does not vanish"},
      {"drop-scale", "mul 1e-18 | batch_norm", "", "eps / s^2 does not overflow"},
      {"drop-scale", "mul -2 | batch_norm w b", "", "a negative scale needs a norm without weight"},
      {"drop-scale", "add 2 | batch_norm", "", "it is a scale"},

      {"center-weights", "conv_transpose kernel g2 | layer_norm channel", "", "one group"},
      {"center-weights", "conv_transpose kernel | layer_norm last", "", "over channels"},
      {"center-weights", "conv_transpose kernel as y | layer_norm channel | mul @y", "", "no other reader"},
      {"center-weights", "conv_transpose kernel as y | add b | layer_norm channel | mul @y", "",
       "no other reader behind a bias"},
      {"center-weights", "conv_transpose kernel | add b as y | layer_norm channel | mul @y", "",
       "no other reader of the biased value"},
      {"center-weights", "conv_transpose kernel | relu | layer_norm channel", "",
       "right behind a convolution"},
      {"center-weights", "conv_transpose kernel b | layer_norm channel", "", "the bias is apart"},
      {"center-weights", "conv_transpose kernel | add t:full | layer_norm channel", "", "a bias per channel"},

      {"split-norm", "layer_norm channel", "", "statistics over space"},

      {"shorten-stride", "max_pool 2 s6x7", "", "longer than the axis"},
      {"shorten-stride", "max_pool 6", "", "a stride of its own"},

      {"merge-pools", "max_pool 2 | min_pool 2", "", "of one kind"},
      {"merge-pools", "max_pool 2 s1 | max_pool 2", "", "the inner windows tile space"},
      {"merge-pools", "max_pool 2 | max_pool 2 s1", "", "the outer windows tile space"},
      {"merge-pools", "avg_pool 2 as y | avg_pool 2 | add 1 as z | @y | mean space | mul @z", "",
       "no other reader between"},
      {"merge-pools", "max_pool 2 sign=w | max_pool 2", "", "the same sign"},

      {"pool-before-monotone", "gelu | max_pool 2", "", "f never decreases"},
      {"pool-before-monotone", "leaky_relu -0.2 | max_pool 2", "", "a positive slope"},
      {"pool-before-monotone", "elu -0.5 | max_pool 2", "", "a positive alpha"},
      {"pool-before-monotone", "sqrt | max_pool 2", "", "NaN of a negative number is not picked"},
      {"pool-before-monotone", "prelu w | max_pool 2", "", "the sign of the weight is not known"},
      {"pool-before-monotone", "leaky_relu 0 | max_pool 2", "", "0 times infinity is not made"},
      {"pool-before-monotone", "mul 0 | max_pool 2", "", "a factor that is not 0"},
      {"pool-before-monotone", "mul -inf | max_pool 2", "", "a finite factor"},
      {"pool-before-monotone", "add inf | max_pool 2", "", "a finite shift"},
      {"pool-before-monotone", "add t:full | max_pool 2", "", "constant over space"},
      {"pool-before-monotone", "mul t:full | max_pool 2", "", "a factor constant over space"},
      {"pool-before-monotone", "div t | max_pool 2", "", "no division by a tensor"},
      {"pool-before-monotone", "relu as y | mean space as m | @y | mul @m | max_pool 2", "",
       "the factor's sign is known with the weights"},
      {"pool-before-monotone", "mul t | max_pool 2 sign=w", "", "one sign a pool"},
      {"pool-before-monotone", "moments batch as m | @input | normalize batch @m w b | max_pool 2 sign=s", "",
       "one sign a pool, behind a norm"},
      {"pool-before-monotone", "tanh as y | max_pool 2 | mean space as p | @y | mul @p", "",
       "no other reader"},
      {"pool-before-monotone", "mean space | add @input | max_pool 2", "", "x has the result's shape"},
      {"pool-before-monotone", "softmax_stats space as s | @input | softmax_apply space @s | max_pool 2", "",
       "f is the same over space"},
      {"pool-before-monotone", "tanh | avg_pool 2", "", "the pool picks an element"},

      {"average-before-linear", "relu | avg_pool 2", "", "f is linear"},
      {"average-before-linear", "maximum 0 | mean space", "", "f is linear"},
      {"average-before-linear", "add t:full | avg_pool 2", "", "constant over space"},
      {"average-before-linear", "mul inf | avg_pool 2", "", "a finite factor"},
      {"average-before-linear", "add inf | avg_pool 2", "", "a finite shift"},
      {"average-before-linear", "div 0 | mean space", "", "a divisor that is not 0"},
      {"average-before-linear", "add 1 as y | avg_pool 6x7 | mul @y", "", "no other reader, for a pool"},
      {"average-before-linear", "add 1 | mean width", "", "all of space"},
      {"average-before-linear", "mean space | mul @input | avg_pool 2", "", "x has the result's shape"},

      {"pool-kernel", "conv_transpose kernel s2 | avg_pool 3", "", "windows divide the stride"},
      {"pool-kernel", "conv_transpose kernel s2x3 | avg_pool 2", "", "on each axis"},
      {"pool-kernel", "conv_transpose kernel s2 d2 | avg_pool 2", "", "no dilation"},
      {"pool-kernel", "conv_transpose kernel s2 | avg_pool 2 s1", "", "windows tile space"},
      {"pool-kernel", "conv_transpose kernel b s2 | avg_pool 2", "", "the bias is apart"},
      {"pool-kernel", "conv_transpose kernel s2 as y | avg_pool 2 | mean space as m | @y | mul @m", "",
       "no other reader"},
      {"pool-kernel", "conv_transpose kernel s2 | max_pool 2", "", "an average"},
      {"pool-kernel", "conv_transpose kernel s2 | relu | avg_pool 2", "", "nothing nonlinear between"},

      {"mean-without-conv", "conv_transpose kernel | mean width", "", "over all of space"},
      {"mean-without-conv", "conv_transpose kernel b | mean space", "", "the bias is apart"},
      {"mean-without-conv", "conv_transpose kernel | relu | mean space", "", "nothing nonlinear between"},
      {"mean-without-conv", "conv_transpose kernel | max space", "", "a mean"},
      {"mean-without-conv", "conv_transpose kernel as y | mean space as m | @y | sub @m", "",
       "no other reader: the difference would keep two roundings"},
      {"mean-without-conv",
       "conv_transpose kernel as y | moments batch as m | @y | mean space | normalize batch @m", "",
       "no other reader: a norm is such a difference"},
      {"mean-without-conv",
       "conv_transpose kernel p1x0 | mean space",
       "",
       "every tap reaches the output",
       {{"input", {2, 4, 1, 7}}, {"kernel", {4, 6, 3, 3}}}},

      {"bounded-softmax", "clamp -5 5 | softmax space", "", "a range of at most 8"},
      {"bounded-softmax", "clamp -1 inf | softmax space", "", "bounded above"},
      {"bounded-softmax", "clamp -inf 1 | softmax space", "", "bounded below"},
      {"bounded-softmax", "relu | softmax space", "", "a bounded function"},
      {"bounded-softmax", "clamp 0 1 | softmax channel", "", "over space"},
      {"bounded-softmax", "gelu | softmax space", "", "a range is known"},

      {"split-softmax", "softmax channel", "", "over space"},

      {"crop-outputs", "conv_transpose kernel | max_pool 2x3", "", "floor division drops something"},
      {"crop-outputs", "conv_transpose kernel as y | max_pool 3 | mean space as m | @y | mul @m", "",
       "no other reader"},
      {"crop-outputs", "conv_transpose kernel | layer_norm last | max_pool 3", "", "no neighbour between"},
      {"crop-outputs", "conv_transpose kernel | add t:full | max_pool 3", "", "operands constant over space"},
      {"crop-outputs", "conv_transpose kernel | batch_norm | max_pool 3", "", "no statistics between"},
      {"crop-outputs", "relu | max_pool 4", "", "behind a convolution"},
      {"crop-outputs",
       "conv_transpose kernel as y | softmax_stats space as s | @y | softmax_apply space @s | max_pool 3", "",
       "no softmax over space between"},
      {"crop-outputs",
       "conv_transpose kernel | mean space | relu | mul @input | max_pool 5",
       "",
       "the value keeps its shape",
       {{"input", {2, 4, 6, 7}}, {"kernel", {4, 4, 3, 3}}}},
  };
}

}  // namespace upweave::law_cases
