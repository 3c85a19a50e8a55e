#pragma once
// What lies between passes grows with the batch, and the engine's memory must not. Where all samples at once
// would take too much, a few of them, a *micro-batch*, are run at a time:
//   - samples that never meet: one micro-batch after the other, through all launches
//   - statistics over the batch: all micro-batches are counted first, each leaving its values in a *slot* of
//     the workspace. There are as many slots as fit; the micro-batches that others have pushed out of theirs
//     are computed again when the statistics are known, as are the launches in front of a second such launch.
// Results have the bits that all samples at once would have given.
#include <optional>

#include "engine/cpu/values.h"
#include "plan/plan.h"

namespace upweave::cpu {

// The plan of so many samples, or nothing where a parameter varies along the batch, or what is computed is of
// one sample for all.
std::optional<FusedPlan> cut_samples(const FusedPlan& whole, int64_t samples);

struct MicroBatches {
  int64_t samples = 0, all = 0;       // of one micro-batch, of the batch
  int64_t slots = 1, slot_bytes = 0;  // what lies between passes, for so many micro-batches
  int64_t output_bytes = 0;           // of one sample

  int64_t count() const { return (all + samples - 1) / samples; }
};

// `bases.workspace` is where the first slot is.
void run_micro_batches(const MicroBatches& batches, const std::vector<std::unique_ptr<Launch>>& launches,
                       const Bases& bases, char* scratch, int threads);

// What all of a program's workspace may take.
int64_t scratch_limit(int threads);
void set_scratch_limit_for_test(int64_t bytes);  // 0: as it was

}  // namespace upweave::cpu
