// Kernels of transposed convolutions that rewrites make of other kernels, when weights are packed. A kernel
// is (C_in, C_out/groups, K...) unless said otherwise.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "graph/ops/conv.h"

namespace upweave {
namespace {

void check_kernel(const Node& node, const Shape& shape) {
  if (shape.size() >= 3 && shape.size() <= 5) return;
  throw invalid("{} meets a value of shape {}; it must be (C, C, one extent per spatial axis)", node.op->name,
                to_string(shape));
}

int64_t groups_of(const Node& node) {
  const int64_t groups = conv_groups(node);
  if (groups < 1) throw invalid("groups is {}; it must be at least 1", groups);
  return groups;
}

// conv's kernel (C_out, C_in/groups, K...) as the transposed convolution's (C_in, C_out/groups, K...): of
// each group the channels change places, and taps come in the opposite order. With `axes`, a matrix (C_out,
// C_in) gets as many spatial axes of one tap.
Shape flip_shape(const Graph& graph, const Node& node) {
  Shape from = shape_of(graph, node, 0);
  if (node.attrs.has("axes")) {  // a matrix
    const int64_t axes = node.attrs.ints("axes").front();
    if (from.size() != 2 || axes < 1 || axes > 3)
      throw invalid("flip of a matrix of shape {} for {} spatial axes", to_string(from), axes);
    from.resize(static_cast<size_t>(axes) + 2, 1);
  }
  check_kernel(node, from);
  const int64_t groups = groups_of(node);
  if (from[0] % groups != 0)
    throw invalid("out_channels is {}, which groups = {} does not divide", from[0], groups);
  Shape shape = from;
  shape[0] = checked_mul(from[1], groups, "in_channels");
  shape[1] = from[0] / groups;
  return shape;
}

void flip(const Node& node, Inputs in, Tensor& out) {
  const int64_t groups = groups_of(node), per_in = in[0]->shape[1], per_out = out.shape[1];
  const int64_t taps = count(Shape(out.shape.begin() + 2, out.shape.end()));
  for (int64_t i = 0; i < per_in * groups; ++i) {
    for (int64_t o = 0; o < per_out; ++o) {
      const double* from = in[0]->data.data() + ((i / per_in * per_out + o) * per_in + i % per_in) * taps;
      double* to = out.data.data() + (i * per_out + o) * taps;
      std::reverse_copy(from, from + taps, to);
    }
  }
}

// The kernel behind a nearest upsampling by s, per axis: K'[t] = sum of K[t - j] over 0 <= j < s.
Shape widened_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  check_kernel(node, shape);
  const Shape scale = per_axis(node, "scale", shape.size() - 2, 1);
  for (size_t a = 0; a < scale.size(); ++a) {
    if (scale[a] < 1) throw invalid("the scale of widen_taps is {}; it must be at least 1", scale[a]);
    shape[a + 2] = checked_add(shape[a + 2], scale[a] - 1, "the widened kernel");
  }
  return shape;
}

void widen_taps(const Node& node, Inputs in, Tensor& out) {
  const Shape& from = in[0]->shape;
  const Shape scale = per_axis(node, "scale", from.size() - 2, 1), strides = row_major(out.shape);
  std::fill(out.data.begin(), out.data.end(), 0.0);
  for_each_index(from, [&](const Shape& index, int64_t i) {
    int64_t at = 0;
    for (size_t a = 0; a < index.size(); ++a) at += index[a] * strides[a];
    for_each_index(scale, [&](const Shape& j, int64_t) {
      int64_t to = at;
      for (size_t a = 0; a < j.size(); ++a) to += j[a] * strides[a + 2];
      out.data[to] += in[0]->data[i];
    });
  });
}

// The kernel of a stride-1 convolution whose output goes through pixel_shuffle r: channel c r^axes + (a, b,
// ..) of tap f becomes channel c of tap f r + (a, b, ..).
Shape shuffled_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  check_kernel(node, shape);
  const Shape scale = per_axis(node, "scale", shape.size() - 2, 1);
  int64_t phases = 1;
  for (size_t a = 0; a < scale.size(); ++a) {
    if (scale[a] < 1) throw invalid("the scale of shuffle_taps is {}; it must be at least 1", scale[a]);
    phases = checked_mul(phases, scale[a], "the phases of shuffle_taps");
    shape[a + 2] = checked_mul(shape[a + 2], scale[a], "the shuffled kernel");
  }
  if (shape[1] % phases != 0)
    throw invalid("the kernel has {} output channels, which {} phases do not divide", shape[1], phases);
  shape[1] /= phases;
  return shape;
}

void shuffle_taps(const Node& node, Inputs in, Tensor& out) {
  const Shape& from = in[0]->shape;
  const Shape scale = per_axis(node, "scale", from.size() - 2, 1), strides = row_major(from);
  int64_t phases = 1;
  for (const int64_t r : scale) phases *= r;
  for_each_index(out.shape, [&](const Shape& index, int64_t i) {
    int64_t phase = 0, at = index[0] * strides[0];
    for (size_t a = 0; a < scale.size(); ++a) {
      phase = phase * scale[a] + index[a + 2] % scale[a];
      at += index[a + 2] / scale[a] * strides[a + 2];
    }
    out.data[i] = in[0]->data[at + (index[1] * phases + phase) * strides[1]];
  });
}

// K[i, o, ..] * v[o]: operand 1 holds a value for each output channel of all groups, or one for all.
Shape scaled_shape(const Graph& graph, const Node& node) {
  const Shape& shape = shape_of(graph, node, 0);
  check_kernel(node, shape);
  const int64_t channels = checked_mul(shape[1], groups_of(node), "out_channels"),
                values = count(shape_of(graph, node, 1));
  if (values != 1 && values != channels)
    throw invalid("scale_channels has {} factors for {} output channels", values, channels);
  return shape;
}

void scale_channels(const Node& node, Inputs in, Tensor& out) {
  const Shape& shape = out.shape;
  const int64_t per_in = shape[0] / groups_of(node), taps = count(Shape(shape.begin() + 2, shape.end()));
  const bool one = in[1]->data.size() == 1;
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t o = 0; o < shape[1]; ++o) {
      const double factor = in[1]->data[one ? 0 : i / per_in * shape[1] + o];
      for (int64_t k = (i * shape[1] + o) * taps; k < (i * shape[1] + o + 1) * taps; ++k)
        out.data[k] = in[0]->data[k] * factor;
    }
  }
}

// Two stride-1 convolutions in a row, one of them of single taps: K'[i, o, t] = sum over m of K[i, m, t] A[m,
// o], or of A[i, m] K[m, o, t]. A bias b between them becomes sum over m of b[m] A[m, o].
Shape joined_shape(const Graph& graph, const Node& node) {
  const Shape &first = shape_of(graph, node, 0), &next = shape_of(graph, node, 1);
  check_kernel(node, next);
  const bool vector = first.size() == 1;
  const Shape taps = vector ? Shape(next.size() - 2, 1) : Shape(first.begin() + 2, first.end()),
              next_taps(next.begin() + 2, next.end());
  if (!vector) check_kernel(node, first);
  if (taps.size() != next_taps.size() || (vector ? first[0] : first[1]) != next[0] ||
      (count(next_taps) != 1 && (vector || count(taps) != 1))) {
    throw invalid("join_channels of shapes {} and {}, which do not follow each other", to_string(first),
                  to_string(next));
  }
  if (vector) return {next[1]};
  Shape shape = {first[0], next[1]};
  for (size_t a = 0; a < taps.size(); ++a) shape.push_back(std::max(taps[a], next_taps[a]));
  return shape;
}

void join_channels(const Node&, Inputs in, Tensor& out) {
  const Shape &first = in[0]->shape, &next = in[1]->shape;
  const bool vector = first.size() == 1;
  const int64_t outer = vector ? 1 : first[0], inner = next[0], columns = next[1];
  const int64_t taps = vector ? 1 : count(Shape(first.begin() + 2, first.end())),
                next_taps = count(Shape(next.begin() + 2, next.end())), all = taps * next_taps;
  std::fill(out.data.begin(), out.data.end(), 0.0);
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t m = 0; m < inner; ++m) {
      for (int64_t o = 0; o < columns; ++o) {
        const double *k = in[0]->data.data() + (i * inner + m) * taps,
                     *a = in[1]->data.data() + (m * columns + o) * next_taps;
        double* to = out.data.data() + (i * columns + o) * all;
        for (int64_t t = 0; t < all; ++t) to[t] += k[taps == 1 ? 0 : t] * a[taps == 1 ? t : 0];
      }
    }
  }
}

// norm_scale: weight / sqrt(var + eps) of operands (var, weight).
// norm_shift: bias - (mean - before) * scale of operands (mean, scale, bias, before).
Shape vector_shape(const Graph& graph, const Node& node) {
  const Shape& shape = shape_of(graph, node, 0);
  for (size_t slot = 1; slot < node.in.size(); ++slot) {
    if (node.in[slot] != kNone && shape_of(graph, node, slot) != shape)
      throw invalid("{} of shapes {} and {}, which must be the same", node.op->name, to_string(shape),
                    to_string(shape_of(graph, node, slot)));
  }
  return shape;
}

void norm_scale(const Node& node, Inputs in, Tensor& out) {
  const double eps = node.attrs.real_or("eps", 1e-5);
  for (size_t i = 0; i < out.data.size(); ++i)
    out.data[i] = (in[1] ? in[1]->data[i] : 1.0) / std::sqrt(in[0]->data[i] + eps);
}

void norm_shift(const Node&, Inputs in, Tensor& out) {
  for (size_t i = 0; i < out.data.size(); ++i)
    out.data[i] =
        (in[2] ? in[2]->data[i] : 0.0) - (in[0]->data[i] - (in[3] ? in[3]->data[i] : 0.0)) * in[1]->data[i];
}

Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example,
              Shape (*shape)(const Graph&, const Node&), void (*evaluate)(const Node&, Inputs, Tensor&)) {
  Operation op{.id = id, .family = Family::kWeights, .name = name};
  op.summary = summary;
  op.example = example;
  op.shape = shape;
  op.evaluate = evaluate;
  op.reach = [](const Node&) { return Reach::kPoint; };
  op.internal = true;
  op.of_weights = true;
  return op;
}

}  // namespace

std::vector<Operation> ops_kernels() {
  const Arg groups{.name = "groups", .kind = Arg::Kind::kInts, .prefix = "g", .single = true};
  const Arg scale{.name = "scale", .kind = Arg::Kind::kInts, .required = true};
  Operation turn = row(Op::kFlip, "flip", "a convolution's kernel as that of a transposed convolution",
                       "param kernel | flip", flip_shape, flip);
  turn.args = {{.name = "axes", .kind = Arg::Kind::kInts, .single = true}, groups};
  Operation widen = row(Op::kWidenTaps, "widen_taps", "the kernel behind a nearest upsampling",
                        "param kernel | widen_taps 2", widened_shape, widen_taps);
  widen.args = {scale};
  Operation shuffle = row(Op::kShuffleTaps, "shuffle_taps", "the kernel in front of a pixel shuffle",
                          "param kernel | shuffle_taps 2", shuffled_shape, shuffle_taps);
  shuffle.args = {scale};
  Operation scales = row(Op::kScaleChannels, "scale_channels", "a kernel, each output channel times a factor",
                         "param kernel | scale_channels factors", scaled_shape, scale_channels);
  scales.args = {{.name = "factors", .kind = Arg::Kind::kTensor, .required = true}, groups};
  Operation join = row(Op::kJoinChannels, "join_channels",
                       "two kernels in a row, one of single taps, or a bias and a kernel",
                       "param kernel | join_channels next", joined_shape, join_channels);
  join.args = {{.name = "next", .kind = Arg::Kind::kTensor, .required = true}};
  Operation factor = row(Op::kNormScale, "norm_scale", "weight / sqrt(var + eps)",
                         "param var | norm_scale weight", vector_shape, norm_scale);
  factor.args = {{.name = "weight", .kind = Arg::Kind::kTensor},
                 {.name = "eps", .kind = Arg::Kind::kReal, .named = true}};
  Operation shift = row(Op::kNormShift, "norm_shift", "bias - (mean - before) * scale",
                        "param mean | norm_shift scale bias=b", vector_shape, norm_shift);
  shift.args = {{.name = "scale", .kind = Arg::Kind::kTensor, .required = true},
                {.name = "bias", .kind = Arg::Kind::kTensor, .named = true},
                {.name = "before", .kind = Arg::Kind::kTensor, .named = true}};
  return {turn, widen, shuffle, scales, join, factor, shift};
}

}  // namespace upweave
