#pragma once
// Two convolutions of the same operands, the second of which reads only what the first reduced: passes that
// are scheduled together, in one kernel that is launched several times.
#include <array>
#include <optional>
#include <vector>

#include "engine/cuda/conv_kernels.h"

namespace upweave::cuda {

// What a launch has to do of the first pass and of the second, and which blocks do it, by part: the kernel's
// parameter SharedLaunch (depth_streaming_sm90.cuh).
struct SharedLaunch {
  std::array<int, 2> job{}, jobs{};
  std::array<std::vector<int>, 2> blocks;
};

struct CoSchedule {
  Fusion fusion;  // of the second pass
  std::unique_ptr<Schedule> schedule;
  std::vector<SharedLaunch> launches;
};

// The schedule of pass `p`, which has this one, together with the next one; or none. Gives parts of
// reductions a slot for each block that can meet a sample.
std::optional<CoSchedule> co_schedule(Lowering& l, size_t p, const Fusion& fusion, Schedule& schedule);

// Writes the kernel of both passes and returns its launches, between which those of `combine` make the
// statistics of the samples that the second pass comes to next.
std::vector<Launch> co_scheduled_launches(Lowering& l, const ConvKernel& first, const ConvKernel& second,
                                          const std::vector<SharedLaunch>& shares,
                                          const std::vector<Launch>& combine);

}  // namespace upweave::cuda
