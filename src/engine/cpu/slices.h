#pragma once
// A pipeline that needs all of a channel's space before it can go on (softmax over space, instance norm) has
// to keep the convolution's result meanwhile, in float32. A 16-bit output has no room for it. Where channels
// do not meet behind the convolution, the pipeline is run slice by slice: one sample and a block of channels
// at a time, whose values between passes stay in the last-level cache.
#include <optional>

#include "plan/plan.h"

namespace upweave::cpu {

struct Slices {
  int64_t samples = 1, blocks = 1;  // slice (n, b) is the output's n-th sample and b-th block of channels
  FusedPlan plan;                   // of one slice: nodes as in the whole plan, smaller shapes
};

// Cuts each sample into `blocks`, or says that this cannot be done.
std::optional<Slices> cut_slices(const FusedPlan& whole, int64_t blocks);

// What stays in a last-level cache between two passes, next to what passes through: slices are no larger.
// (What the system says of the cache is often the whole socket's.)
int64_t last_level_bytes();
void set_last_level_bytes_for_test(int64_t bytes);  // 0: as it was

// Block b of a parameter or of what is made of it: `part` differs from `whole` in one extent at most.
void copy_block(const void* from, const Shape& whole, const Shape& part, int64_t b, int64_t element_bytes,
                void* to);

}  // namespace upweave::cpu
