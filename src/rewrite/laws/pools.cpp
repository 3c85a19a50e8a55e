#include "base/checked.h"
#include "graph/ops/conv_transpose.h"
#include "rewrite/laws/law.h"

namespace upweave {

// pool_m(pool_n(x)) = pool_mn(x) for two max, two min or two average pools whose windows tile space:
// floor(floor(L / n) / m) = floor(L / (n m)), and every outer window is made of whole inner ones.
// NaN and infinities: the same set of elements meets in each window.
std::optional<Graph> merge_pools(const Graph& graph, Id id, Firing& firing) {
  const Node& outer = graph[id];
  if (!is_pool(outer)) return std::nullopt;
  const Node& inner = graph[outer.in[0]];
  if (inner.op != outer.op) return std::nullopt;
  const PoolAttrs m = pool_attrs(outer), n = pool_attrs(inner);
  if (!m.tiles() || !n.tiles()) return std::nullopt;
  if (!only_user(graph, outer.in[0])) return std::nullopt;
  if (is_extreme_pool(outer) && outer.in[1] != inner.in[1]) return std::nullopt;
  Shape window = m.window;
  for (size_t a = 0; a < window.size(); ++a)
    window[a] = checked_mul(window[a], n.window[a], "the pool's window");
  Edit edit(graph);
  const Id merged = edit.again(outer.in[0], inner.in);
  edit.node(merged).attrs.set("window", window);
  edit.node(merged).attrs.erase("stride");
  firing.where = print_stage(graph, outer.in[0]) + " | " + print_stage(graph, id);
  firing.why = "both have stride = window, so windows of windows are windows";
  return edit.replace(id, merged);
}

// A pool whose windows along an axis are one has no use for a stride there: it is no larger than the extent,
// so that products of strides stay as small as products of extents. Exact for every value.
std::optional<Graph> shorten_stride(const Graph& graph, Id id, Firing& firing) {
  const Node& pool = graph[id];
  if (!is_pool(pool) || !pool.attrs.has("stride")) return std::nullopt;
  const Shape& in = shape_of(graph, pool, 0);
  const Shape given = pool_attrs(pool).stride;
  Shape stride = given;
  for (size_t a = 0; a < stride.size(); ++a) stride[a] = std::min(stride[a], in[a + 2]);
  if (stride == given) return std::nullopt;
  Edit edit(graph);
  const Id shorter = edit.again(id, pool.in);
  edit.node(shorter).attrs.set("stride", stride);
  firing.where = print_stage(graph, id);
  firing.why = fmt::format("one window fits an axis that is shorter than its stride {}", to_string(given));
  return edit.replace(id, shorter);
}

// max_pool(f(x)) = f(max_pool(x)) for f that never decreases: tanh, relu, clamp, + b, * s > 0: one f a
// window. For f(x) = a x + b with a < 0, max_pool(f(x)) = a min_pool(x) + b. Where the sign of `a` is known
// only with the weights (a norm's weight, a scale per channel), the pool takes that tensor as its `sign`. f
// must be constant over space and have no other reader. NaN goes through both sides. A NaN that f itself
// makes of one x of the window (0 * inf, inf - inf, which needs a parameter of 0 or infinity) appears only
// if the pool picks that x.
std::optional<Graph> pool_before_monotone(const Graph& graph, Id id, Firing& firing) {
  const Node& pool = graph[id];
  if (!is_extreme_pool(pool)) return std::nullopt;
  const Id fid = pool.in[0];
  const Node& f = graph[fid];
  if (f.in.empty() || !only_user(graph, fid) || f.op->reach(f) != Reach::kPoint || is(f, Op::kSoftmaxApply)) {
    return std::nullopt;
  }
  Op kind = pool.op->id;
  Id sign = pool.in[1];
  if (is(f, Op::kNormalize)) {
    if (f.in[2] != kNone) {
      if (sign != kNone) return std::nullopt;
      sign = f.in[2];
      firing.why =
          fmt::format("a norm rises with x where its weight {} is positive and falls where it is negative; ",
                      graph[sign].name);
    }
    firing.why += "1/sqrt(var + eps) is positive";
  } else if (f.in.size() > 1 &&
             (shape_of(graph, f, 0) != f.shape || !constant_over_space(operand_shape(graph, f)))) {
    return std::nullopt;
  } else if (f.op->monotone && f.op->monotone(f)) {
    firing.why = fmt::format("{} never decreases", f.op->name);
  } else if (one_of(f, {Op::kMul, Op::kDiv}) && is_number(f) && f.attrs.real("value") < 0 &&
             std::isfinite(f.attrs.real("value"))) {
    kind = is(pool, Op::kMaxPool) ? Op::kMinPool : Op::kMaxPool;
    firing.why = fmt::format("a factor of {} turns the largest into the smallest", f.attrs.real("value"));
  } else if (is(f, Op::kMul) && !is_number(f) && sign == kNone && graph[f.in[1]].of_parameters &&
             operand_shape(graph, f)[0] == 1) {
    sign = f.in[1];
    firing.why =
        fmt::format("x * {} rises where it is positive and falls where it is negative", graph[sign].name);
  } else {
    return std::nullopt;
  }
  const bool weighed = is(f, Op::kNormalize) && f.in[2] != kNone;
  if (weighed || (one_of(f, {Op::kAdd, Op::kSub, Op::kMul}) && !is_number(f))) {
    firing.why += "; where it makes NaN of 0 * inf or inf - inf, only if the pool picks that element";
  }
  Edit edit(graph);
  std::vector<Id> in = f.in;
  in[0] = edit.add(kind, {f.in[0], sign}, pool.attrs);
  firing.where = print_stage(graph, fid) + " | " + print_stage(graph, id);
  return edit.replace(id, edit.again(fid, in));
}

// average(a x + b) = a average(x) + b for a, b constant over space: an average pool, or a mean over space,
// goes before arithmetic and before a norm's affine map. A pool moves only past a value that nobody else
// reads; a mean over space is small, so it always may. The sums meet the same NaN and infinities, but for an
// infinite `a`: it made NaN of an x of 0 or of x of both signs, and now meets their average. A number is
// checked, a tensor cannot be.
std::optional<Graph> average_before_linear(const Graph& graph, Id id, Firing& firing) {
  const Node& average = graph[id];
  const bool mean = is(average, Op::kMean) && average.attrs.word("axes") == "space";
  if (!mean && !is(average, Op::kAvgPool)) return std::nullopt;
  const Id fid = average.in[0];
  const Node& f = graph[fid];
  if (!mean && !only_user(graph, fid)) return std::nullopt;
  if (one_of(f, {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv})) {
    if (shape_of(graph, f, 0) != f.shape || !constant_over_space(operand_shape(graph, f)))
      return std::nullopt;
    if (is_number(f) &&
        (!std::isfinite(f.attrs.real("value")) || (is(f, Op::kDiv) && f.attrs.real("value") == 0)))
      return std::nullopt;
  } else if (!is(f, Op::kNormalize)) {
    return std::nullopt;
  }
  Edit edit(graph);
  std::vector<Id> in = f.in;
  in[0] = edit.again(id, {f.in[0]});
  firing.where = print_stage(graph, fid) + " | " + print_stage(graph, id);
  firing.why = fmt::format("{} is linear in x and the same over all of space", f.op->name);
  if (one_of(f, {Op::kMul, Op::kDiv, Op::kNormalize}) && !is_number(f))
    firing.why += "; an infinite factor now meets the average, not each element";
  return edit.replace(id, edit.again(fid, in));
}

// avg_pool(convT(x; K)) = convT(x; K') with fewer taps and a smaller stride: see pool_taps for K'.
// Needs windows that tile space and divide the stride on each axis, no dilation, no step, and no other
// reader. NaN reaches the same outputs. An infinity in x that met taps of both signs gave NaN; it now meets
// their sum.
std::optional<Graph> pool_kernel(const Graph& graph, Id id, Firing& firing) {
  const Node& pool = graph[id];
  if (!is(pool, Op::kAvgPool)) return std::nullopt;
  const auto [window, step] = pool_attrs(pool);
  if (step != window) return std::nullopt;
  const Id cid = pool.in[0];
  const Node& conv = graph[cid];
  if (!is(conv, Op::kConvTranspose) || conv.in[2] != kNone || !only_user(graph, cid)) return std::nullopt;
  const ConvGeometry g = conv_geometry(graph, conv);
  if (!g.every_output()) return std::nullopt;
  Attributes taps;
  taps.set("window", window);
  taps.set("padding", g.padding);
  Shape stride = g.stride, padding = g.padding;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (g.stride[a] % window[a] != 0 || g.dilation[a] != 1) return std::nullopt;
    stride[a] /= window[a];
    padding[a] = (g.padding[a] + window[a] - 1) / window[a];
  }
  Attributes attrs;
  attrs.set("stride", stride);
  attrs.set("padding", padding);
  if (g.groups != 1) attrs.set("groups", Shape{g.groups});
  attrs.set("out", Shape(pool.shape.begin() + 2, pool.shape.end()));
  Edit edit(graph);
  const Id kernel = edit.add(Op::kPoolTaps, {conv.in[1]}, taps);
  firing.where = print_stage(graph, cid) + " | " + print_stage(graph, id);
  firing.why = fmt::format(
      "windows of {} divide the stride {} and nothing nonlinear stands between; an infinity that met "
      "taps of both signs was NaN and now meets their sum",
      to_string(window), to_string(g.stride));
  return edit.replace(id, edit.add(Op::kConvTranspose, {conv.in[0], kernel, kNone}, attrs));
}

// The mean over space of a convolution is linear in x: each tap meets the sum of x over the box of inputs
// that it carries into the output, so no output is ever computed. Nobody else may read the convolution: its
// outputs would be computed all the same, by rounded or transformed products, and where they or their
// statistics meet this mean again (a norm, x - mean) the difference would keep the rounding that cancels
// between sums of the same products. Each tap must reach the output, for a NaN in one that does not was never
// seen. NaN and infinities of x come out as before; an infinite tap made NaN of an x of 0 or of x of both
// signs, and now meets their sum. No step.
std::optional<Graph> mean_without_conv(const Graph& graph, Id id, Firing& firing) {
  const Node& mean = graph[id];
  if (!is(mean, Op::kMean) || mean.attrs.word("axes") != "space") return std::nullopt;
  const Id cid = mean.in[0];
  const Node& conv = graph[cid];
  if (!is(conv, Op::kConvTranspose) || conv.in[2] != kNone || !only_user(graph, cid)) return std::nullopt;
  const ConvGeometry g = conv_geometry(graph, conv);
  if (!g.every_output()) return std::nullopt;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (!all_taps_land(g, a)) return std::nullopt;
  }
  Edit edit(graph);
  Attributes attrs = conv.attrs;
  attrs.set("out", Shape(conv.shape.begin() + 2, conv.shape.end()));
  firing.where = print_stage(graph, cid) + " | " + print_stage(graph, id);
  firing.why =
      "a mean over all of space is linear and nobody else reads the convolution: only sums of the input are "
      "needed, border slabs apart; an infinite tap now meets that sum, not each element";
  return edit.replace(id, edit.add(Op::kMeanConv, {conv.in[0], conv.in[1], kNone}, attrs));
}

// A pool reads (out - 1) * stride + window elements of an axis; floor division drops the rest. If between the
// convolution and the pool each value has one reader and needs no neighbour, the rest is never computed.
// NaN and infinities in what is dropped never reached the result.
std::optional<Graph> crop_outputs(const Graph& graph, Id id, Firing& firing) {
  const Node& pool = graph[id];
  if (!is_pool(pool)) return std::nullopt;
  const auto [window, stride] = pool_attrs(pool);
  Id at = pool.in[0];
  while (true) {
    const Node& node = graph[at];
    if (!only_user(graph, at) || node.in.empty()) return std::nullopt;
    if (is(node, Op::kConvTranspose)) break;
    const Reach reach = node.op->reach(node);
    if (reach != Reach::kPoint && reach != Reach::kChannels) return std::nullopt;
    if (is(node, Op::kSoftmaxApply)) return std::nullopt;  // its statistics see all of space
    if (node.in.size() == 2 && node.in[1] != kNone &&
        (shape_of(graph, node, 0) != node.shape || !constant_over_space(operand_shape(graph, node)))) {
      return std::nullopt;
    }
    at = node.in[0];
  }
  const Node& conv = graph[at];
  Shape needed(window.size());
  for (size_t a = 0; a < window.size(); ++a) needed[a] = (pool.shape[a + 2] - 1) * stride[a] + window[a];
  const Shape whole(conv.shape.begin() + 2, conv.shape.end());
  if (needed == whole) return std::nullopt;
  Edit edit(graph);
  const Id cropped = edit.again(at, conv.in);
  edit.node(cropped).attrs.set("out", needed);
  firing.where = print_stage(graph, at) + " | ... | " + print_stage(graph, id);
  firing.why = fmt::format("{} of {} outputs lie in whole windows", to_string(needed), to_string(whole));
  return edit.replace(at, cropped);
}

}  // namespace upweave
