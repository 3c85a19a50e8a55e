#pragma once
// Offsets from lifetimes: what is not alive at the same time may share memory.
#include "plan/plan.h"

namespace upweave {

struct Offsets {
  std::vector<int64_t> at;  // of each lifetime, aligned to 64
  int64_t bytes = 0;        // of all of them
  int64_t least = 0;        // the most that is alive at one step
};

// Values are put in one after the other, each as low as those allow that are there and alive with it. The
// order decides how good the result is: the largest first, those alive longest first, then orders at random,
// always the same, as long as a better one may be found.
Offsets assign_offsets(const std::vector<Lifetime>& values);

}  // namespace upweave
