#pragma once
// Concatenations that only convolutions read.
#include "plan/plan.h"

namespace upweave {

// conv(cat(a, b)) reads a and b where they are: a cat that only convolutions of later passes read moves from
// the pass that would store it into those that read it, and what it joins is stored instead. `memory`: what
// passes leave there.
void sink_cats(const Graph& graph, std::vector<Pass>& passes, std::vector<bool>& memory);

}  // namespace upweave
