// The FMA peak as a contender, so that it is measured beside every sample: `run 1` answers GFLOP/s of two
// threads.
#include <cstdio>
#include <iostream>
#include <string>

#include "../fma_peak.h"

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::stoi(argv[1]) : 2;
  std::printf("ready\n");
  std::fflush(stdout);
  std::string word;
  while (std::cin >> word) {
    int n = 0;
    std::cin >> n;
    std::printf("%.3f\n", upweave::bench::fma_peak(threads) / 1e9);
    std::fflush(stdout);
  }
}
