#include "engine/cuda/fusion.h"

#include <algorithm>

#include "graph/operation.h"
#include "graph/ops/conv_transpose.h"

namespace upweave::cuda {
namespace {

// Reductions over `axes`, and those that join values two by two.
bool over(const Node& node, const char* axes) {
  return node.attrs.has("axes") && node.attrs.word("axes") == axes;
}
bool combines_values(const Node& node) {
  return is(node, Op::kSum) || is(node, Op::kMean) || is(node, Op::kMax) || is(node, Op::kMin);
}

// Whether `id` can follow `last` where whole lines leave their windows one by one: nobody else reads `last`,
// and it takes one value to another, or reduces values that are there for every channel over them.
bool follows_windows(const Graph& graph, const Pass& pass, const Fusion& f, Id last, Id id) {
  const Node& node = graph[id];
  if (node.in[0] != last || f.scalar[last] || last == graph.output ||
      std::ranges::find(pass.writes, last) != pass.writes.end() ||
      std::any_of(node.in.begin() + 1, node.in.end(), [&](Id in) { return f.holds(in); }) ||
      std::ranges::any_of(pass.nodes, [&](Id reader) {
        return reader != id && std::ranges::find(graph[reader].in, last) != graph[reader].in.end();
      }))
    return false;
  if (is_pointwise(node)) return node.shape == graph[last].shape;
  return over(node, "channel") && combines_values(node);
}

}  // namespace

std::vector<bool> ancestors(const Graph& graph, const Pass& pass) {
  std::vector<bool> head(graph.nodes.size(), false);
  head[pass.conv] = true;
  for (auto it = pass.nodes.rbegin(); it != pass.nodes.rend(); ++it) {
    if (!head[*it]) continue;
    for (const Id in : graph[*it].in) {
      if (in != kNone) head[in] = true;
    }
  }
  head[pass.conv] = false;
  return head;
}

Fusion choose_fusion(const Lowering& l, const Pass& pass, Id pool, bool over_space, bool whole_lines) {
  const Graph& graph = l.graph;
  Fusion f;
  f.conv = pass.conv;
  f.pool = pool;
  f.here.assign(graph.nodes.size(), false);
  f.behind_pool = f.scalar = f.reduction = f.here;
  const std::vector<bool> head = ancestors(graph, pass);
  for (const Id id : pass.nodes) {
    const Node& node = graph[id];
    if (head[id]) continue;
    if (id == pass.conv) {
      f.here[id] = true;
      f.nodes.push_back(id);
      continue;
    }
    // Operands: registers, parameters, or values that are in memory already.
    bool possible = true, any = false, behind = false, scalars = true;
    for (size_t s = 0; s < node.in.size(); ++s) {
      const Id in = node.in[s];
      if (in == kNone || l.weights[in]) continue;
      if (f.holds(in) && !f.reduction[in]) {
        if (any && f.behind_pool[in] != behind) possible = false;
        any = true;
        behind = f.behind_pool[in];
        scalars = scalars && f.scalar[in];
      } else {
        possible = possible && l.stored(in) && s > 0;
        scalars = scalars && graph[in].shape[1] == 1;
      }
    }
    if (!possible || !f.holds(node.in[0])) continue;
    if (behind && whole_lines && !follows_windows(graph, pass, f, f.last, id)) continue;
    bool reduction = false, scalar = scalars;
    if (is_pointwise(node)) {
      if (node.shape[1] != 1) scalar = false;
    } else if (id == pool) {
      if (behind || scalars) continue;
      behind = true;
      scalar = false;
    } else if (over(node, "channel") && !scalars && node.in[0] != kNone && !is(node, Op::kSoftmaxStats)) {
      f.whole_columns = true;
      scalar = combines_values(node) || is(node, Op::kLogsumexp);
    } else if (over_space && !scalars &&
               (is(node, Op::kMoments) ||
                (over(node, "space") && (combines_values(node) || is(node, Op::kSoftmaxStats))))) {
      reduction = true;
      if (!(is(node, Op::kMoments) && node.attrs.word("axes") == "batch")) f.one_sample = true;
    } else {
      continue;
    }
    if (scalar && !reduction) f.whole_columns = true;
    f.here[id] = true;
    f.behind_pool[id] = behind;
    f.scalar[id] = scalar && !reduction;
    if (behind) f.last = id;
    f.reduction[id] = reduction;
    f.nodes.push_back(id);
  }
  // What leaves: the output, what the plan wants in memory, and operands of nodes that did not join.
  bool points = false;
  for (const Id id : f.nodes) {
    if (f.reduction[id]) continue;
    bool leaves = id == graph.output || std::ranges::find(pass.writes, id) != pass.writes.end();
    for (const Id reader : pass.nodes) {
      if (f.here[reader] || head[reader]) continue;
      leaves = leaves || std::ranges::find(graph[reader].in, id) != graph[reader].in.end();
    }
    if (!leaves) continue;
    f.stores.push_back(id);
    points = points || !f.behind_pool[id];
  }
  f.all_outputs = points;
  for (const Id id : f.nodes) f.all_outputs = f.all_outputs || (f.reduction[id] && !f.behind_pool[id]);
  const ConvGeometry g = conv_geometry(graph, graph[pass.conv]);
  const auto stride = g.stride.back();
  f.store_phases = points && pool == kNone && (stride == 2 || stride == 4) ? static_cast<int>(stride) : 1;
  return f;
}

}  // namespace upweave::cuda
