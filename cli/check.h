#pragma once
// Seeded data for a plan, and its answer held against the float64 reference.
#include <map>
#include <string>
#include <vector>

#include "upweave/upweave.hpp"

namespace upweave::cli {

// Tensors for every name of the plan: normal, signed, scaled so that the convolution's values are of size 1
// and nothing saturates. The same seed gives the same bits everywhere.
struct Case {
  Case(const Plan& plan, uint64_t seed);
  Tensors tensors() const;
  void run() { plan.run(tensors(), output.data()); }

  Plan plan;
  std::map<std::string, std::vector<std::byte>> data;
  std::vector<std::byte> output;  // poisoned: an element that nobody writes is a NaN
};

struct Verdict {
  double worst = 0;  // the largest |got - want| as a fraction of its bound; infinite where NaNs do not match
  int64_t index = 0, elements = 0;
  double got = 0, want = 0, bound = 0;  // there
  bool right() const { return worst <= 1; }
};

// Compares the case's output, elementwise, with the reference and its derived error bound.
Verdict compare(const Case& c);

}  // namespace upweave::cli
