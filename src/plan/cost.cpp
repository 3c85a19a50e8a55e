#include "plan/cost.h"

#include "base/dtype.h"
#include "graph/operation.h"
#include "graph/ops/conv.h"

namespace upweave {

double flops(const Graph& graph, Id id) {
  const Node& node = graph[id];
  if (node.in.empty()) return 0;
  if (is(node, Op::kConvTranspose)) {
    // 2 (C_in / groups) C_out products and sums for each (input, tap) pair that lands inside the output.
    const ConvGeometry g = conv_geometry(graph, node);
    double n = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.c_in / g.groups) *
               static_cast<double>(g.c_out);
    for (size_t a = 0; a < g.spatial; ++a) n *= static_cast<double>(taps_total(g, a));
    return n;
  }
  if (is_plain_conv(node)) {
    const PlainConvGeometry g = plain_conv_geometry(graph, node);
    double n = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.c_in / g.groups) *
               static_cast<double>(g.c_out);
    for (size_t a = 0; a < g.spatial; ++a) n *= static_cast<double>(plain_taps_total(g, a));
    return n;
  }
  const double elements = static_cast<double>(std::max(count(node.shape), count(graph[node.in[0]].shape)));
  if (is(node, Op::kMeanConv)) {
    // Box sums by slabs, then every tap once a sample.
    const Shape& kernel = graph[node.in[1]].shape;
    return 2 * elements + 2.0 * static_cast<double>(node.shape[0] * count(kernel));
  }
  return node.op->ops_per_element * elements;
}

double unfused_bytes(const Graph& graph, Id id, Dtype dtype) {
  double elements = static_cast<double>(count(graph[id].shape));
  for (const Id in : graph[id].in) {
    if (in != kNone) elements += static_cast<double>(count(graph[in].shape));
  }
  return elements * static_cast<double>(size_of(dtype));
}

Cost plan_cost(const FusedPlan& plan, Dtype dtype) {
  Cost cost;
  for (Id id = 0; id < plan.source.size(); ++id) {
    if (plan.source[id].in.empty()) continue;
    cost.unfused_flops += flops(plan.source, id);
    cost.unfused_bytes += unfused_bytes(plan.source, id, dtype);
    ++cost.unfused_passes;
  }
  for (const Pass& pass : plan.passes) {
    cost.flops += pass.flops;
    cost.bytes += pass.bytes;
    ++cost.passes;
  }
  return cost;
}

}  // namespace upweave
