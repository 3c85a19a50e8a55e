#pragma once
// A convolution, and what its kernel takes along, from a plan's pass to launches.
#include <string>
#include <vector>

#include "engine/cuda/lower.h"

namespace upweave::cuda {

// The convolution of pass `p` with all that it can take of its pass, and the next pass's too where both share
// a kernel. Returns how many passes that were; 0 (and `why`) if it must go the general way.
size_t lower_conv(Lowering& l, size_t p, std::vector<bool>& done, std::string& why);

}  // namespace upweave::cuda
