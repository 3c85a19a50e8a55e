#include "rewrite/rewrite.h"

#include <algorithm>

#include "rewrite/laws/law.h"

namespace upweave {

const std::vector<Law>& laws() {
  // Order matters only for speed and for what `explain` tells: terms that vanish go first, splits that make
  // room for other laws next, and what depends on final extents last.
  static const std::vector<Law> all = {
      {"drop-identity", "x * 1 = x; a reduction or pool of single elements is the element", drop_identity},
      {"share-equal", "f(x) = f(x): equal operations on equal operands are one", share_equal},
      {"clamp-to-nan", "clamp(x; lo, hi) = x * NaN where a limit is NaN", clamp_to_nan},
      {"pad-into-conv", "conv(pad(x; a); p) = conv(x; p + a)", pad_into_conv},
      {"split-padding", "conv(x; p, mode) = conv(pad(x; p, mode))", split_padding},
      {"conv-as-transposed", "conv(x; K; p) = convT(x; flip K; d (k - 1) - p)", conv_as_transposed},
      {"split-bias", "convT(x; K, b) = convT(x; K) + b", split_bias},
      {"given-norm", "batch_norm(x; m, v) = x * scale + shift", split_given_norm},
      {"scale-into-weights", "convT(x; K) * v = convT(x; K v)", scale_into_weights},
      {"upsample-conv", "convT(upsample(x; s); K) = convT(x; K'; s), K' sums K's taps over windows of s",
       upsample_into_conv},
      {"pixel-shuffle-conv", "pixel_shuffle(convT(x; K); r) = convT(x; K'; r), channels of K as phases",
       shuffle_into_conv},
      {"crop-before-pointwise", "crop(f(x)) = f(crop(x))", crop_before_pointwise, true},
      {"crop-conv", "crop(convT(x; p)) = convT(x; p + what is cut off)", crop_into_conv},
      {"join-convs", "convT(convT(x; K); A) = convT(x; K A) for single taps", join_convs},
      {"drop-shift", "norm(x + c) = norm(x)", drop_shift},
      {"drop-scale", "norm(s x; eps) = sign(s) norm(x; eps / s^2)", drop_scale},
      {"center-weights", "layer_norm(convT(x; K) + b) = rms_norm(convT(x; K - mean K) + b - mean b)",
       center_weights},
      {"adjust-moments", "moments(s x + b) = (s mean + b, s^2 var) of x", adjust_moments},
      {"split-norm", "norm(x) = normalize(x, moments(x))", split_norm},
      {"shorten-stride", "pool(x; stride) = pool(x; extent) along an axis shorter than the stride",
       shorten_stride},
      {"merge-pools", "pool_m(pool_n(x)) = pool_mn(x)", merge_pools},
      {"pool-before-monotone",
       "max_pool(f(x)) = f(max_pool(x)); max_pool(a x + b) = a min_pool(x) + b where a < 0",
       pool_before_monotone, true},
      {"average-before-linear", "average(a x + b) = a average(x) + b", average_before_linear, true},
      {"pool-kernel", "avg_pool(convT(x; K)) = convT(x; K'), K' the average of K's shifted taps",
       pool_kernel},
      {"mean-without-conv",
       "mean over space of convT(x; K) = sum K[k] * (sum of x over the box that k reaches)",
       mean_without_conv},
      {"bounded-softmax", "softmax(x) = exp(x - hi) / sum exp(x - hi) for x <= hi", bounded_softmax},
      {"split-softmax", "softmax(x) = exp(x - max) / sum with (max, sum) found in one sweep", split_softmax},
      {"crop-outputs", "pool(x) reads only whole windows: the rest of x is never computed", crop_outputs},
  };
  return all;
}

namespace {

std::optional<Graph> try_law(const Law& law, const Graph& graph, std::vector<Firing>& firings) {
  for (Id id = 0; id < graph.size(); ++id) {
    Firing firing{std::string(law.name), std::string(law.equation), {}, {}};
    if (auto next = law.apply(graph, id, firing)) {
      firings.push_back(std::move(firing));
      return next;
    }
  }
  return std::nullopt;
}

}  // namespace

Graph as_engines_see(Graph graph, Dtype dtype) {
  if (dtype == Dtype::kF64) return graph;
  for (Node& node : graph.nodes) {
    for (const char* name : {"value", "lo", "hi", "slope"}) {
      if (!node.attrs.has(name)) continue;
      const double number = node.attrs.real(name), single = static_cast<float>(number);
      if (single == 0 || std::isinf(single)) node.attrs.set(name, single);
    }
  }
  return graph;
}

Rewritten rewrite(const Graph& graph) {
  constexpr int kMaxMoves = 1000;  // far more than any pipeline needs to be fast
  Rewritten result{graph, {}};
  int moves = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Law& law : laws()) {
      if (law.moves && moves == kMaxMoves) continue;
      if (auto next = try_law(law, result.graph, result.firings)) {
        result.graph = std::move(*next);
        moves += law.moves;
        changed = true;
        break;
      }
    }
  }
  return result;
}

std::optional<Rewritten> apply_once(const Graph& graph, std::string_view name) {
  for (const Law& law : laws()) {
    if (law.name != name) continue;
    Rewritten result;
    if (auto next = try_law(law, graph, result.firings)) {
      result.graph = std::move(*next);
      return result;
    }
  }
  return std::nullopt;
}

Graph Edit::replace(Id old, Id with) {
  // What a law makes is built from old's operands, never from old itself.
  for (Node& node : graph_.nodes) {
    for (Id& in : node.in) {
      if (in == old) in = with;
    }
  }
  if (graph_.output == old) graph_.output = with;
  for (Output& output : graph_.extra_outputs) {
    if (output.value == old) output.value = with;
  }
  if (graph_[with].name.empty() && !graph_[old].in.empty()) std::swap(graph_[with].name, graph_[old].name);
  Graph pruned = prune(std::move(graph_));
  const Shapes shapes = tensor_shapes(pruned);
  return infer(std::move(pruned), shapes);
}

bool only_user(const Graph& graph, Id id) {
  ptrdiff_t readers = (graph.output == id) + std::ranges::count(graph.extra_outputs, id, &Output::value);
  for (const Node& node : graph.nodes) readers += std::ranges::count(node.in, id);
  return readers == 1;
}

Shape operand_shape(const Graph& graph, const Node& node) {
  if (is_number(node)) return Shape(node.shape.size(), 1);
  const Shape& operand = shape_of(graph, node, 1);
  if (operand.size() == node.shape.size()) return operand;
  return broadcast_shape(operand, node.shape, "operand");
}

}  // namespace upweave
