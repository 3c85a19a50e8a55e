#include "plan/plan.h"

#include <algorithm>

#include "graph/operation.h"
#include "plan/cost.h"
#include "plan/given_weights.h"
#include "plan/parts.h"
#include "plan/passes.h"

namespace upweave {
namespace {

// With several outputs, each leaves by a node that nobody reads, so that where it lies and how it is rounded
// is nobody else's matter: values that others read, that are given out twice or are the input, and
// statistics, which engines keep in their own way until they are complete, leave by a copy, x * 1.
void separate_outputs(Graph& graph) {
  if (graph.extra_outputs.empty()) return;
  const auto readers = users(graph);
  const auto separate = [&](Id& output, const std::string& name) {
    if (readers[output].size() == 1 && !is(graph[output], Op::kMoments) &&
        !is(graph[output], Op::kSoftmaxStats))
      return;
    Node copy;
    copy.op = &operation(Op::kMul);
    copy.in = {output, kNone};
    copy.attrs.set("value", 1.0);
    copy.shape = graph[output].shape;
    copy.name = name;
    if (graph[output].name == name) graph[output].name.clear();
    output = graph.add(std::move(copy));
  };
  separate(graph.output, "");
  for (Output& output : graph.extra_outputs) separate(output.value, output.name);
}

}  // namespace

Dtype output_dtype(const Graph& graph, Id output, Dtype dtype) {
  return is_statistics(graph[output]) && dtype != Dtype::kF64 ? Dtype::kF32 : dtype;
}

FusedPlan make_plan(Graph source, Rewritten rewritten, const Target& target, const Options& options) {
  FusedPlan plan;
  plan.source = std::move(source);
  plan.graph = std::move(rewritten.graph);
  plan.firings = std::move(rewritten.firings);
  separate_outputs(plan.graph);
  plan.weights = weight_side(plan.graph);
  plan.passes = make_passes(plan.graph, target, options.dtype);
  keep_given_weights(plan, target, options);
  choose_part(plan, target, options);
  plan.cost = plan_cost(plan, options.dtype);
  return plan;
}

}  // namespace upweave
