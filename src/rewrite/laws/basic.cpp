#include <algorithm>
#include <limits>
#include <map>

#include "graph/ops/reductions.h"
#include "rewrite/laws/law.h"

namespace upweave {

// x * 1 = x / 1 = x; a pool of windows of one element, or a sum, mean, max or min over axes of extent 1, is
// x. Exact for every value, NaN and infinities included.
std::optional<Graph> drop_identity(const Graph& graph, Id id, Firing& firing) {
  const Node& node = graph[id];
  bool identity = false;
  if (one_of(node, {Op::kMul, Op::kDiv})) identity = is_number(node) && node.attrs.real("value") == 1;
  if (is_pool(node)) {
    const PoolAttrs pool = pool_attrs(node);
    identity = pool.tiles() && pool.window == Shape(pool.window.size(), 1);
  }
  if (one_of(node, {Op::kSum, Op::kMean, Op::kMax, Op::kMin})) {
    identity = true;
    for (const size_t axis : reduced_axes(node, shape_of(graph, node, 0))) {
      if (shape_of(graph, node, 0)[axis] != 1) identity = false;
    }
  }
  // A plan needs something to do: a pipeline that only hands its input on keeps its one operation.
  if (!identity || (id == graph.output && is_input(graph, node.in[0]))) return std::nullopt;
  firing.where = print_stage(graph, id);
  firing.why = "it gives back each element as it is";
  return Edit(graph).replace(id, node.in[0]);
}

// Two nodes of the same operation with the same operands and attributes are one value: it is computed once,
// and rounded once. Exact. Tried at the first input, for all nodes at once.
std::optional<Graph> share_equal(const Graph& graph, Id id, Firing& firing) {
  if (id != 0) return std::nullopt;
  std::map<std::pair<const Operation*, std::vector<Id>>, std::vector<Id>> seen;
  for (Id at = 0; at < graph.size(); ++at) {
    const Node& node = graph[at];
    if (node.in.empty()) continue;
    std::vector<Id>& alike = seen[{node.op, node.in}];
    const auto same = std::ranges::find_if(alike, [&](Id other) { return graph[other].attrs == node.attrs; });
    if (same != alike.end()) {
      firing.where = print_stage(graph, at);
      firing.why = "it has the operands and attributes of another";
      return Edit(graph).replace(at, *same);
    }
    alike.push_back(at);
  }
  return std::nullopt;
}

// clamp(x; lo, hi) = x * NaN where a limit is NaN: all of it is NaN, as in PyTorch, which engines need not
// know.
std::optional<Graph> clamp_to_nan(const Graph& graph, Id id, Firing& firing) {
  const Node& node = graph[id];
  if (!one_of(node, {Op::kClamp, Op::kHardtanh})) return std::nullopt;
  if (!std::isnan(node.attrs.real("lo")) && !std::isnan(node.attrs.real("hi"))) return std::nullopt;
  Attributes nan;
  nan.set("value", std::numeric_limits<double>::quiet_NaN());
  Edit edit(graph);
  firing.where = print_stage(graph, id);
  firing.why = "a limit that is NaN leaves nothing else";
  return edit.replace(id, edit.add(Op::kMul, {node.in[0], kNone}, nan));
}

// convT(x; K, b) = convT(x; K) + b, so that the laws of `add` apply to a convolution's bias.
// Exact; a bias of NaN or infinity reaches the same outputs.
std::optional<Graph> split_bias(const Graph& graph, Id id, Firing& firing) {
  const Node& node = graph[id];
  if (!is(node, Op::kConvTranspose) || node.in[2] == kNone) return std::nullopt;
  Edit edit(graph);
  const Id conv = edit.again(id, {node.in[0], node.in[1], kNone});
  firing.where = print_stage(graph, id);
  firing.why = "a bias is added to every voxel of its channel";
  return edit.replace(id, edit.add(Op::kAdd, {conv, node.in[2]}));
}

}  // namespace upweave
