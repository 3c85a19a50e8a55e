#pragma once
// Where values live between passes: in the output's memory, in the workspace, or with what outlives
// micro-batches; in which layout and element type.
#include "plan/plan.h"

namespace upweave {

// A place for every value that passes leave, without offsets. `plan.part` is known.
void choose_places(FusedPlan& plan, const Target& target, const Options& options);

// Offsets of what lies in the workspace, and what all of it takes. A value of which the plan does not know
// that it is stored, because the engine takes a pass apart, gets its place here.
void assign_places(FusedPlan& plan, const Footprint& footprint);

// Of an engine that runs passes as they are.
Footprint footprint_of_passes(const FusedPlan& plan);

// {2, sets} over the whole batch.
bool counts_batch(const Graph& graph, Id id);

}  // namespace upweave
