#pragma once
// Which operations share one pass over memory.
#include "plan/plan.h"

namespace upweave {

// The passes of a graph, in their order, each with what it reads, writes and costs.
std::vector<Pass> make_passes(const Graph& graph, const Target& target, Dtype dtype);

// Fills in what follows from a pass's nodes and writes: reads, operations and bytes.
void count_pass(Pass& pass, const Graph& graph, const std::vector<bool>& weights, Dtype dtype);

// Whether the node's result is known only when the whole pass is over.
bool ends_pass(const Node& node, bool slab);
// Norms over several trailing axes see more than a row: they wait for a pass whose tile is a whole sample.
bool needs_slab(const Node& node);

}  // namespace upweave
