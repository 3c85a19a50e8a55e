#pragma once
// Graphs with the shapes of one part.
#include <optional>

#include "plan/plan.h"

namespace upweave {

// One of `blocks` blocks of channels of one sample, or nothing where channels meet.
std::optional<Part> cut_slices(const FusedPlan& whole, int64_t blocks);

// So many samples, or nothing where a parameter varies along the batch, or what is computed is of one sample
// for all.
std::optional<Part> cut_samples(const FusedPlan& whole, int64_t samples);

}  // namespace upweave
