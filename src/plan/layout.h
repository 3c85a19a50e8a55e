#pragma once
// How values lie between passes.
#include "plan/plan.h"

namespace upweave {

// Values that convolutions read from the workspace are channels last, if the target has that layout and
// padding a position's channels costs little: nothing is transposed between two convolutions then.
void choose_layouts(FusedPlan& plan, const Target& target);

}  // namespace upweave
