#include "engine/cpu/micro_batch.h"

#include <atomic>

#include "base/watch.h"
#include "engine/cpu/schedule.h"

namespace upweave::cpu {
namespace {

std::atomic<int64_t> limit_for_test{0};

}  // namespace

void run_micro_batches(const MicroBatches& batches, const std::vector<std::unique_ptr<Launch>>& launches,
                       const Bases& bases, char* scratch, int threads) {
  const int64_t count = batches.count();
  // The launches [from, to) of micro-batch p; statistics are counted by the last of them, if at all.
  auto run = [&](int64_t p, size_t from, size_t to, bool counts) {
    // The last micro-batch is filled up with samples of the one before it.
    const int64_t first = std::min(p * batches.samples, batches.all - batches.samples);
    Bases b = bases;
    b.first = first;
    b.output += first * batches.output_bytes;
    b.workspace += p % batches.slots * batches.slot_bytes;
    b.before = p * batches.samples;
    b.skip = b.before - first;
    b.closes = p + 1 == count;
    for (size_t i = from; i < to; ++i) {
      b.counts = counts && i + 1 == to;
      launches[i]->run(b, scratch, threads, false);
      throw_if_interrupted();
    }
  };
  size_t ready = 0;  // launches that every micro-batch with a slot of its own has behind it
  for (size_t i = 0; i < launches.size(); ++i) {
    if (!launches[i]->over_batch()) continue;
    for (int64_t p = 0; p < count; ++p) run(p, count <= batches.slots ? ready : 0, i + 1, true);
    ready = i + 1;
  }
  const int64_t kept = ready == 0 ? 0 : std::min(count, batches.slots);
  for (int64_t p = count - kept; p < count; ++p) {
    // What the last micro-batch shares with the one before it has been replaced by results.
    const bool shares = p + 1 == count && batches.all % batches.samples != 0;
    run(p, shares ? 0 : ready, launches.size(), false);
  }
  for (int64_t p = 0; p < count - kept; ++p) run(p, 0, launches.size(), false);
}

int64_t scratch_limit(int threads) {
  const int64_t bytes = limit_for_test;
  constexpr int64_t kOther = int64_t{640} << 10;  // a thread's stack, code, and pages that are used in part
  return bytes > 0 ? bytes : (kScratchBytes - kOther) * threads;
}
void set_scratch_limit_for_test(int64_t bytes) { limit_for_test = bytes; }

}  // namespace upweave::cpu
