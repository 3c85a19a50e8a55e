#pragma once
// How the engine goes through micro-batches (plan/parts.h), each in its slot of the workspace.
#include <memory>
#include <vector>

#include "engine/cpu/values.h"

namespace upweave::cpu {

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
