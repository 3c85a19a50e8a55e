// The memory's side of a roofline: bytes a second that all threads together read, write through the caches
// and write past them, by the size of what they go over. Sizes above the last-level cache give the memory's
// own rates; the largest of a few tries counts.
//
//   memory_bench [threads]
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "engine/cpu/kernels/kernels.h"

namespace {
using namespace upweave;

// f(first element, elements) of each thread's own share, timed from the first thread's start to the last's
// end.
double rate(float* data, int64_t floats, int threads, const std::function<void(float*, int64_t)>& f) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int i = 0; i < 9; ++i) {
    const auto start = Clock::now();
#pragma omp parallel num_threads(threads)
    {
      const int64_t share = floats / threads / 1024 * 1024;
      f(data + omp_get_thread_num() * share, share);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(floats) * 4 / seconds);
  }
  return best / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_max_threads();
  std::vector<float> zeros(1024), sums(static_cast<size_t>(threads));
  const int64_t most = int64_t{64} << 20;
  float* data = static_cast<float*>(std::aligned_alloc(1 << 21, static_cast<size_t>(most)));
  std::fill(data, data + most / 4, 1.0f);
  fmt::print("{} threads, GB/s\n{:>5} {:>8} {:>8} {:>8}\n", threads, "MiB", "read", "write", "stream");
  for (const int64_t mib : {1, 4, 8, 16, 32, 64}) {
    const int64_t floats = (mib << 20) / 4;
    auto write = [&](bool stream) {
      return [&, stream](float* p, int64_t n) {
        for (int64_t i = 0; i < n; i += 1024) cpu::shrink(zeros.data(), 1024, p + i, Dtype::kF32, stream);
        cpu::flush_stream();
      };
    };
    const double read = rate(data, floats, threads, [&](float* p, int64_t n) {
      float sum;
      for (int64_t i = 0; i < n; i += 1024) {
        cpu::fold_rows(cpu::Fold::kSum, p + i, 1024, 1, 1024, &sum);
        sums[static_cast<size_t>(omp_get_thread_num())] += sum;
      }
    });
    const double through = rate(data, floats, threads, write(false));
    const double past = rate(data, floats, threads, write(true));
    fmt::print("{:>5} {:>8.1f} {:>8.1f} {:>8.1f}\n", mib, read, through, past);
  }
  std::free(data);
}
