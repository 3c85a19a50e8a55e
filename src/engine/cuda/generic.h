#pragma once
// A kernel for one value: the road that every graph can take.
#include "engine/cuda/lower.h"

namespace upweave::cuda {

// Computes node `id` by a kernel of its own and stores it.
void lower_alone(Lowering& l, Id id, bool packing = false);
// Whether a kernel of its own is needed, or its readers can compute it in place.
bool must_store(const Lowering& l, Id id);

}  // namespace upweave::cuda
