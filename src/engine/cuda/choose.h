#pragma once
// Chooses what a convolution's kernel takes along and how it is scheduled; writes nothing.
#include <memory>
#include <string>

#include "engine/cuda/fusion.h"
#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

// The schedule that takes along as much of the pass as fits, and what that is; or none, and why.
std::unique_ptr<Schedule> choose_fusion_and_schedule(Lowering& l, Pass& pass, Fusion& fusion,
                                                     std::string& why);

}  // namespace upweave::cuda
