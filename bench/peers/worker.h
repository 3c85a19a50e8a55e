#pragma once
// The protocol of a benchmark contender: a process that prepares one pipeline, writes its output once for
// checking, then runs when told to. bench/cpu.py talks to it in lines:
//   -> run N      <- N times in milliseconds, one line
//   -> memory     <- peak resident set in MB
//   -> first      <- milliseconds of each thing that was done once, before the first run
// Contenders are processes of their own so that no thread pool spins beside another one's work.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace peers {

inline double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// The high-water mark of this program: getrusage would begin with that of the process that started it.
inline double peak_resident_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

inline void serve(const std::function<void()>& run, const std::vector<double>& first = {}) {
  std::printf("ready\n");
  std::fflush(stdout);
  std::string word;
  while (std::cin >> word) {
    if (word == "run") {
      int n = 0;
      std::cin >> n;
      for (int i = 0; i < n; ++i) {
        const double start = now_ms();
        run();
        std::printf("%.6f%s", now_ms() - start, i + 1 < n ? " " : "\n");
      }
    } else if (word == "memory") {
      std::printf("%.1f\n", peak_resident_mb());
    } else if (word == "first") {
      for (const double ms : first) std::printf("%.3f ", ms);
      std::printf("\n");
    }
    std::fflush(stdout);
  }
}

}  // namespace peers
