#pragma once
// What kernels must do, counted while they are made, for explain's prediction.
#include "engine/cuda/fusion.h"
#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

// What launches must do. The first two of a convolution: making the fp16 copy of its input, and itself. The
// others of values with a kernel of their own: one value, a norm with its moments, and a mean of a
// convolution by way of sums over boxes.
Work convert_work(const Lowering& l, Id input, const Schedule& t);
Work conv_work(const Lowering& l, const Fusion& f, const Schedule& t);
void note_work(Lowering& l, Id id, LaunchId launch);
void note_norm_work(Lowering& l, Id id, LaunchId launch);
void note_mean_conv_work(Lowering& l, Id id, LaunchId sums, LaunchId products);

}  // namespace upweave::cuda
