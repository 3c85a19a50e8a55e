#include "plan/given_weights.h"

#include <algorithm>
#include <map>

#include "graph/operation.h"
#include "plan/passes.h"

namespace upweave {
namespace {

// A parameter that was centred, as it was; kNone: it was not.
Id given(const Graph& graph, Id id) {
  return id != kNone && is(graph[id], Op::kCenter) && is_param(graph, graph[id].in[0]) ? graph[id].in[0]
                                                                                       : kNone;
}

}  // namespace

void keep_given_weights(FusedPlan& plan, const Target& target, const Options& options) {
  if (!target.wants_given_weights) return;
  Graph graph = plan.graph;
  const auto readers = users(graph);
  std::map<Id, const Pass*> centred;  // convolutions in the order in which the law has met them
  for (const Pass& pass : plan.passes) {
    if (pass.conv != kNone && given(graph, graph[pass.conv].in[1]) != kNone)
      centred.try_emplace(pass.conv, &pass);
  }
  bool changed = false;
  auto firing = plan.firings.begin();
  for (const auto& [conv, pass] : centred) {
    firing = std::ranges::find(firing, plan.firings.end(), "center-weights", &Firing::law);
    if (!target.wants_given_weights(plan, *pass, options)) {
      if (firing != plan.firings.end()) ++firing;
      continue;
    }
    changed = true;
    if (firing != plan.firings.end()) firing = plan.firings.erase(firing);
    graph[conv].in[1] = given(graph, graph[conv].in[1]);
    // Only that norm, or the addition of a centred bias before it, reads such a convolution.
    Id norm = readers[conv].front();
    if (is(graph[norm], Op::kAdd)) {
      graph[norm].in[1] = graph[graph[norm].in[1]].in[0];
      norm = readers[norm].front();
    }
    graph[norm].op = &operation(Op::kLayerNorm);
  }
  if (!changed) return;
  plan.graph = prune(std::move(graph));
  plan.weights = weight_side(plan.graph);
  plan.passes = make_passes(plan.graph, target, options.dtype);
}

}  // namespace upweave
