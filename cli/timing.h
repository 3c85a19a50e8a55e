#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace upweave::cli {

// Seconds of each of `runs` calls of f, sorted; one call warms up.
template <class F>
std::vector<double> time_runs(int runs, F&& f) {
  f();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace upweave::cli
