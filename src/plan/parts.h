#pragma once
// How much goes through the passes together. What lies between passes grows with the batch, and an engine's
// memory must not: where everything at once would take more than the target allows itself, the batch is cut.
//   - slices: a 16-bit pipeline that needs all of a channel's space before it can go on (softmax over space,
//     instance norm) has to keep the convolution's result meanwhile, in float32, for which its output has no
//     room. Where channels do not meet behind the convolution, one sample and a block of channels at a time
//     is run, and what lies between passes stays in the last-level cache.
//   - micro-batches: a few samples at a time. Those that never meet go one micro-batch after the other
//     through all passes; statistics over the batch are counted by all micro-batches first, each leaving its
//     values in a *slot* of the workspace. There are as many slots as fit; the micro-batches that others have
//     pushed out of theirs are computed again.
// Results have the bits that all samples at once would have given.
#include "plan/plan.h"

namespace upweave {

// Chooses the part, the places and, of large 16-bit values, whether they are stored or computed again.
void choose_part(FusedPlan& plan, const Target& target, const Options& options);

// A value of a 16-bit pipeline that is larger than `limit` is computed again by the passes that read it,
// where each of them stays one sweep: storing it would take its memory, and the output cannot hold it.
// Statistics over the batch keep theirs: all of a batch norm's convolution twice costs more than the memory
// is worth.
void compute_large_again(FusedPlan& plan, int64_t limit, Dtype dtype);

}  // namespace upweave
