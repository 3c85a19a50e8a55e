#pragma once
#include "plan/plan.h"

namespace upweave {

// What a plan must be. Passes: every operand is a weight, comes earlier in the pass or was left in memory by
// an earlier one, and `reads` lists exactly the latter; what a pass leaves it has computed, and nothing is
// left twice; a pass has at most one convolution, its `conv`; in the end every output is there. Places: every
// value that is left has one, within the workspace and apart from those that are alive at the same time,
// unless it takes the place of one that ends where it begins. Parts make up the whole.
void check(const FusedPlan& plan);

}  // namespace upweave
