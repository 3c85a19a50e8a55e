// Laws that make every learned upsampling, and every convolution of stride 1, one transposed convolution, and
// put what is linear around it into its weights.
#include "graph/ops/conv.h"
#include "graph/ops/conv_transpose.h"
#include "graph/ops/moves.h"
#include "rewrite/laws/law.h"

namespace upweave {
namespace {

Shape space_of(const Node& node) { return Shape(node.shape.begin() + 2, node.shape.end()); }

// What a transposed convolution says whose outputs have the extents `out`.
Attributes transposed_attrs(const Shape& stride, const Shape& padding, const Shape& dilation, int64_t groups,
                            const Shape& out) {
  const auto all = [](const Shape& values, int64_t of) {
    return std::ranges::all_of(values, [of](int64_t v) { return v == of; });
  };
  Attributes attrs;
  if (!all(stride, 1)) attrs.set("stride", stride);
  if (!all(padding, 0)) attrs.set("padding", padding);
  if (!all(dilation, 1)) attrs.set("dilation", dilation);
  if (groups != 1) attrs.set("groups", Shape{groups});
  attrs.set("out", out);
  return attrs;
}

// One value a channel, or one for all, known when weights are packed.
bool is_channel_vector(const Graph& graph, const Node& node) {
  if (is_number(node) || node.in.size() < 2 || !graph[node.in[1]].of_parameters) return false;
  const Shape operand = operand_shape(graph, node);
  return shape_of(graph, node, 0) == node.shape && operand[0] == 1 && constant_over_space(operand);
}

}  // namespace

// conv(x; K; stride t, p, d) = convT(x; flip K; padding d (K - 1) - p, step t): output o reads input o t - p
// + k d through tap k, which is o t + (d (K - 1) - p) = i + (K - 1 - k) d. Zeros beyond the borders are the
// inputs that are not there. Of stride 1, what is padded beyond d (K - 1) in front of an axis makes outputs
// of 0, which are put there; of another stride there must be no such padding. A product with a matrix has
// single taps. Exact, NaN and infinities too.
std::optional<Graph> conv_as_transposed(const Graph& graph, Id id, Firing& firing) {
  const Node& conv = graph[id];
  if (!is_plain_conv(conv)) return std::nullopt;
  const size_t spatial = spatial_rank(conv.shape);
  const PlainConvAttrs c = plain_conv_attrs(conv, spatial);
  const PlainConvGeometry g = plain_conv_geometry(graph, conv);
  if (c.border != Border::kZeros) return std::nullopt;
  const Shape none(spatial, 0), one(spatial, 1);
  Shape padding(spatial), zeros = none, step = c.stride, out = space_of(conv);
  for (size_t a = 0; a < spatial; ++a) {
    padding[a] = c.dilation[a] * (g.kernel[a] - 1) - c.padding[a];
    zeros[a] = std::max<int64_t>(0, -padding[a]);
    padding[a] = std::max<int64_t>(0, padding[a]);
    if (zeros[a] > 0 && (step[a] != 1 || zeros[a] >= out[a])) return std::nullopt;
    if (out[a] == 1) step[a] = 1;
    out[a] -= zeros[a];
  }
  Attributes flip, attrs = transposed_attrs(one, padding, c.dilation, c.groups, out);
  if (c.groups != 1) flip.set("groups", Shape{c.groups});
  if (step != one) attrs.set("step", step);
  if (is(conv, Op::kMatmul)) flip.set("axes", Shape{static_cast<int64_t>(spatial)});
  Edit edit(graph);
  const bool pads = zeros != none;
  Id result =
      edit.add(Op::kConvTranspose,
               {conv.in[0], edit.add(Op::kFlip, {conv.in[1]}, flip), pads ? kNone : conv.in[2]}, attrs);
  if (pads) {
    Attributes front;
    front.set("extents", zeros);
    front.set("end", none);
    result = edit.add(Op::kPad, {result}, front);
    if (conv.in[2] != kNone) result = edit.add(Op::kAdd, {result, conv.in[2]});
  }
  firing.where = print_stage(graph, id);
  firing.why = "it reads each input through the taps that a transposed one scatters it by";
  return edit.replace(id, result);
}

// conv(pad(x; a, b); p, pe) = conv(x; p + a, pe + b) where pad adds zeros and nobody else reads them.
// A NaN or an infinity among the taps met those zeros and made NaN; it no longer does.
std::optional<Graph> pad_into_conv(const Graph& graph, Id id, Firing& firing) {
  const Node& conv = graph[id];
  if (!is(conv, Op::kConv) || !is(graph[conv.in[0]], Op::kPad) || !only_user(graph, conv.in[0]))
    return std::nullopt;
  const Node& pad = graph[conv.in[0]];
  const size_t spatial = spatial_rank(conv.shape);
  const PlainConvAttrs c = plain_conv_attrs(conv, spatial);
  const PadAttrs zeros = pad_attrs(pad, spatial);
  if (c.border != Border::kZeros || zeros.border != Border::kZeros || zeros.value != 0) return std::nullopt;
  Shape before = c.padding, after = c.padding_end;
  for (size_t a = 0; a < spatial; ++a) {
    before[a] += zeros.begin[a];
    after[a] += zeros.end[a];
  }
  Edit edit(graph);
  const Id padded = edit.again(id, {pad.in[0], conv.in[1], conv.in[2]});
  edit.node(padded).attrs.set("padding", before);
  edit.node(padded).attrs.set("padding_end", after);
  firing.where = print_stage(graph, conv.in[0]) + " | " + print_stage(graph, id);
  firing.why =
      "the zeros are what the convolution would have put there; a NaN or an infinity among the taps no "
      "longer "
      "meets them";
  return edit.replace(id, padded);
}

// conv(x; p, mode) = conv(pad(x; p, mode)): what is read beyond the borders is a matter of the input alone.
std::optional<Graph> split_padding(const Graph& graph, Id id, Firing& firing) {
  const Node& conv = graph[id];
  if (!is(conv, Op::kConv)) return std::nullopt;
  const size_t spatial = spatial_rank(conv.shape);
  const PlainConvAttrs c = plain_conv_attrs(conv, spatial);
  if (c.border == Border::kZeros) return std::nullopt;
  Attributes pads;
  pads.set("extents", c.padding);
  pads.set("end", c.padding_end);
  pads.set("mode", conv.attrs.word("mode"));
  Edit edit(graph);
  const Id plain = edit.again(id, {edit.add(Op::kPad, {conv.in[0]}, pads), conv.in[1], conv.in[2]});
  for (const char* name : {"padding", "padding_end", "mode"}) edit.node(plain).attrs.erase(name);
  firing.where = print_stage(graph, id);
  firing.why = fmt::format("its borders are {}, which concerns the input alone", conv.attrs.word("mode"));
  return edit.replace(id, plain);
}

// convT(upsample(x; s); K; s1) = convT(x; K'; stride s), K'[t] = sum of K[t - j] over 0 <= j < s: input i is
// repeated at i s + j, so that it reaches i s + j - P + k = i s - P + t. So (k + s - 1)/s taps meet in an
// output instead of k, and nothing upsampled exists. Nearest neighbours; no dilation; no other reader. NaN
// reaches the same outputs. An infinity in x that met taps of both signs was NaN and now meets their sum.
std::optional<Graph> upsample_into_conv(const Graph& graph, Id id, Firing& firing) {
  const Node& conv = graph[id];
  if (!is(conv, Op::kConvTranspose) || !is(graph[conv.in[0]], Op::kUpsample) || !only_user(graph, conv.in[0]))
    return std::nullopt;
  const Node& up = graph[conv.in[0]];
  const UpsampleAttrs u = upsample_attrs(up, spatial_rank(up.shape));
  const ConvGeometry g = conv_geometry(graph, conv);
  if (u.linear || !g.every_output()) return std::nullopt;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (g.stride[a] != 1 || (g.dilation[a] != 1 && u.scale[a] != 1)) return std::nullopt;
  }
  Attributes scale;
  scale.set("scale", u.scale);
  Edit edit(graph);
  const Id kernel = edit.add(Op::kWidenTaps, {conv.in[1]}, scale);
  firing.where = print_stage(graph, conv.in[0]) + " | " + print_stage(graph, id);
  firing.why = fmt::format(
      "each input is repeated {} times along the axes and then meets taps side by side, whose sum it meets "
      "now; "
      "an infinity that met taps of both signs was NaN",
      to_string(u.scale));
  return edit.replace(id,
                      edit.add(Op::kConvTranspose, {up.in[0], kernel, conv.in[2]},
                               transposed_attrs(u.scale, g.padding, g.dilation, g.groups, space_of(conv))));
}

// pixel_shuffle(convT(x; K; s1); r) = convT(x; K'; stride r, padding r P): channel c r^axes + a at o lies at
// channel c, o r + a, which input i reaches through tap f r + a. The phases are stored where they belong;
// nothing is moved. No dilation, no other reader, no bias (a channel of the shuffle would have one for each
// phase). Exact.
std::optional<Graph> shuffle_into_conv(const Graph& graph, Id id, Firing& firing) {
  const Node& shuffle = graph[id];
  if (!is(shuffle, Op::kPixelShuffle) || !only_user(graph, shuffle.in[0])) return std::nullopt;
  const Node& conv = graph[shuffle.in[0]];
  if (!is(conv, Op::kConvTranspose) || conv.in[2] != kNone) return std::nullopt;
  const ConvGeometry g = conv_geometry(graph, conv);
  if (!g.every_output()) return std::nullopt;
  const Shape scale = shuffle_factors(shuffle, g.spatial);
  Shape padding = g.padding;
  int64_t phases = 1;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (g.stride[a] != 1 || g.dilation[a] != 1) return std::nullopt;
    padding[a] *= scale[a];
    phases *= scale[a];
  }
  if (g.c_out / g.groups % phases != 0) return std::nullopt;
  Attributes attrs;
  attrs.set("scale", scale);
  Edit edit(graph);
  const Id kernel = edit.add(Op::kShuffleTaps, {conv.in[1]}, attrs);
  firing.where = print_stage(graph, shuffle.in[0]) + " | " + print_stage(graph, id);
  firing.why = "channels that are shuffled into space are phases of a transposed convolution";
  return edit.replace(id,
                      edit.add(Op::kConvTranspose, {conv.in[0], kernel, kNone},
                               transposed_attrs(scale, padding, g.dilation, g.groups, space_of(shuffle))));
}

// crop(f(x)) = f(crop(x)) for f of one element, its other operand the same over space; nobody else reads
// f(x). Along space alone. Exact.
std::optional<Graph> crop_before_pointwise(const Graph& graph, Id id, Firing& firing) {
  const Node& crop = graph[id];
  if (!is(crop, Op::kCrop) || !only_user(graph, crop.in[0])) return std::nullopt;
  const Node& f = graph[crop.in[0]];
  if (!is(f, Family::kPointwise) || crop.shape[1] != f.shape[1]) return std::nullopt;
  if (f.in.size() > 1 && !is_number(f) &&
      (shape_of(graph, f, 0) != f.shape || !constant_over_space(operand_shape(graph, f))))
    return std::nullopt;
  Edit edit(graph);
  std::vector<Id> in = f.in;
  in[0] = edit.again(id, {f.in[0]});
  firing.where = print_stage(graph, crop.in[0]) + " | " + print_stage(graph, id);
  firing.why = "it takes each element alone, and what is cut off is read by nobody";
  return edit.replace(id, edit.again(crop.in[0], in));
}

// crop(convT(x; K; padding P)) = convT(x; K; padding P + what is cut off in front), of the extents that are
// left. Along space alone; nobody else reads the convolution. Exact.
std::optional<Graph> crop_into_conv(const Graph& graph, Id id, Firing& firing) {
  const Node& crop = graph[id];
  if (!is(crop, Op::kCrop) || !only_user(graph, crop.in[0])) return std::nullopt;
  const Node& conv = graph[crop.in[0]];
  if (!is(conv, Op::kConvTranspose) || crop.shape[1] != conv.shape[1]) return std::nullopt;
  const ConvGeometry g = conv_geometry(graph, conv);
  const CropAttrs kept = crop_attrs(crop, conv.shape);
  Shape padding = g.padding;
  for (size_t a = 0; a < g.spatial; ++a) padding[a] += kept.begin[a + 1] * g.step[a];
  Edit edit(graph);
  const Id cropped = edit.again(crop.in[0], conv.in);
  edit.node(cropped).attrs.set("padding", padding);
  edit.node(cropped).attrs.set("out", space_of(crop));
  edit.node(cropped).attrs.erase("output_padding");
  firing.where = print_stage(graph, crop.in[0]) + " | " + print_stage(graph, id);
  firing.why = "outputs that are cut off are never computed";
  return edit.replace(id, cropped);
}

// A batch norm whose statistics are given is x * scale + shift, with scale = weight / sqrt(var + eps) and
// shift = bias - mean * scale, made when weights are packed. A bias b in front of it, x = y + b, goes into
// the shift: bias - (mean - b) * scale. In float64: what cancels in mean - b is not rounded.
std::optional<Graph> split_given_norm(const Graph& graph, Id id, Firing& firing) {
  const Node& norm = graph[id];
  if (!is(norm, Op::kBatchNormGiven)) return std::nullopt;
  const Id x = norm.in[0], mean = norm.in[1], var = norm.in[2], weight = norm.in[3], bias = norm.in[4];
  Id value = x, before = kNone;
  if (const Node& shift = graph[x]; is(shift, Op::kAdd) && is_channel_vector(graph, shift) &&
                                    only_user(graph, x) && shape_of(graph, shift, 1) == graph[mean].shape) {
    value = shift.in[0];
    before = shift.in[1];
  }
  Attributes eps;
  eps.set("eps", norm.attrs.real_or("eps", 1e-5));
  Edit edit(graph);
  const Id scale = edit.add(Op::kNormScale, {var, weight}, eps);
  const Id shift = edit.add(Op::kNormShift, {mean, scale, bias, before});
  firing.where = print_stage(graph, id);
  firing.why = "its statistics are parameters: one factor and one summand a channel";
  return edit.replace(id, edit.add(Op::kAdd, {edit.add(Op::kMul, {value, scale}), shift}));
}

// convT(x; K) * v = convT(x; K v), v a value a channel known with the weights; nobody else reads the
// convolution. A factor that is infinite or NaN makes NaN of taps that are 0, and so of more outputs than
// before.
std::optional<Graph> scale_into_weights(const Graph& graph, Id id, Firing& firing) {
  const Node& mul = graph[id];
  if (!is(mul, Op::kMul) || !is_channel_vector(graph, mul) || !only_user(graph, mul.in[0]))
    return std::nullopt;
  const Node& conv = graph[mul.in[0]];
  if (!is(conv, Op::kConvTranspose) || conv.in[2] != kNone) return std::nullopt;
  Attributes attrs;
  if (conv.attrs.has("groups")) attrs.set("groups", conv.attrs.ints("groups"));
  Edit edit(graph);
  const Id kernel = edit.add(Op::kScaleChannels, {conv.in[1], mul.in[1]}, attrs);
  firing.where = print_stage(graph, mul.in[0]) + " | " + print_stage(graph, id);
  firing.why =
      "the factor of a channel is known with the weights; an infinite one now meets each tap, not the sum";
  return edit.replace(id, edit.again(mul.in[0], {conv.in[0], kernel, kNone}));
}

// convT(convT(x; K) + b; A) = convT(x; K A) + A^T b, where one of the two is of stride 1 and single taps and
// that takes fewer products. Single taps in front leave nothing between them: at a border the second reads no
// bias. No groups, no other reader of what lies between. Where infinities met, NaN may come out as another
// value.
std::optional<Graph> join_convs(const Graph& graph, Id id, Firing& firing) {
  const Node& next = graph[id];
  if (!is(next, Op::kConvTranspose) || next.in[2] != kNone) return std::nullopt;
  Id cid = next.in[0], bias = kNone;
  if (const Node& add = graph[cid]; is(add, Op::kAdd) && is_channel_vector(graph, add) &&
                                    only_user(graph, cid) && shape_of(graph, add, 1) == Shape{add.shape[1]}) {
    bias = add.in[1];
    cid = add.in[0];
  }
  const Node& first = graph[cid];
  if (!is(first, Op::kConvTranspose) || first.in[2] != kNone || !only_user(graph, cid)) return std::nullopt;
  const ConvGeometry a = conv_geometry(graph, first), b = conv_geometry(graph, next);
  const auto single = [](const ConvGeometry& g) {
    const Shape none(g.spatial, 0), one(g.spatial, 1);
    return g.kernel == one && g.stride == one && g.padding == none && g.step == one && g.out == g.in;
  };
  const bool behind = single(b), in_front = single(a) && bias == kNone;
  if (a.groups != 1 || b.groups != 1 || (!behind && !in_front)) return std::nullopt;
  const auto products = [](const ConvGeometry& g, int64_t c_in, int64_t c_out) {
    double all = static_cast<double>(c_in) * static_cast<double>(c_out);
    for (size_t axis = 0; axis < g.spatial; ++axis) all *= static_cast<double>(taps_total(g, axis));
    return all;
  };
  const double apart = products(a, a.c_in, a.c_out) + products(b, b.c_in, b.c_out);
  const double joined = products(behind ? a : b, a.c_in, b.c_out);
  if (joined > apart) return std::nullopt;
  Edit edit(graph);
  const Id kernel = edit.add(Op::kJoinChannels, {first.in[1], next.in[1]});
  Id result = edit.again(behind ? cid : id, {first.in[0], kernel, kNone});
  for (const char* name : {"channels", "kernel"}) edit.node(result).attrs.erase(name);
  if (bias != kNone) result = edit.add(Op::kAdd, {result, edit.add(Op::kJoinChannels, {bias, next.in[1]})});
  firing.where = print_stage(graph, cid) + " | " + print_stage(graph, id);
  firing.why =
      fmt::format("{:.3g} products for {:.3g}; infinities meet each other in another order", joined, apart);
  return edit.replace(id, result);
}

}  // namespace upweave
