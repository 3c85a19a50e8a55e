#pragma once
// Norms over instances and groups whose sets fit a block's registers.
#include "engine/cuda/lower.h"

namespace upweave::cuda {

// Moments `id` and the normalize that alone reads them, in one kernel. Returns that normalize, or kNone if
// nothing was done.
Id lower_norm(Lowering& l, Id id);
// Such a norm that alone reads value `id`, when it is stored, and then can read blocks of channels; or kNone.
Id norm_of_blocks(const Lowering& l, Id id);

}  // namespace upweave::cuda
