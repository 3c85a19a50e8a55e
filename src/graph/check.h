#pragma once
#include "graph/graph.h"

namespace upweave {

// What a graph with shapes must be: operands come before their users and are as many as the operation has,
// every shape is what the operation's rule gives, outputs exist, names are unique.
void check(const Graph& graph);

}  // namespace upweave
