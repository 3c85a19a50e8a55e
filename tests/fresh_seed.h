#pragma once
// A seed for cases that are new in every run: UPWEAVE_TEST_SEED=n makes them those of a run that failed.
#include <cstdlib>
#include <random>

namespace upweave::testing {

inline unsigned fresh_seed() {
  static const unsigned value = [] {
    const char* given = std::getenv("UPWEAVE_TEST_SEED");
    return given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  }();
  return value;
}

}  // namespace upweave::testing
