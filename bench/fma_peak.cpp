#include "fma_peak.h"

#include <time.h>

#include "engine/cpu/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fma_peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace upweave::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 12 independent chains cover the latency of two units on any machine; the sum keeps them alive.
HWY_ATTR float Chains(long steps) {
  const hn::ScalableTag<float> d;
  auto x = hn::Set(d, 0.9999f);
  const auto y = hn::Set(d, 1e-6f);
  hn::Vec<decltype(d)> a[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) a[i] = hn::Set(d, 0.001f * static_cast<float>(i));
  for (long k = 0; k < steps; ++k) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = hn::MulAdd(a[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) a[0] = hn::Add(a[0], a[i]);
  return hn::GetLane(hn::SumOfLanes(d, a[0]));
}
HWY_ATTR double Operations() { return 2.0 * 12 * static_cast<double>(hn::Lanes(hn::ScalableTag<float>())); }

}  // namespace HWY_NAMESPACE
}  // namespace upweave::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::bench {
HWY_EXPORT(Chains);
HWY_EXPORT(Operations);

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double fma_peak(int threads) {
  constexpr long kSteps = 100000;
  double seconds = 0, sink = 0;
#pragma omp parallel num_threads(threads) reduction(+ : seconds, sink)
  {
    const double start = thread_seconds();
    sink += HWY_DYNAMIC_DISPATCH(Chains)(kSteps);
    seconds += thread_seconds() - start;
  }
  if (sink == 0.1234) return 0;  // never: it keeps the chains alive
  return HWY_DYNAMIC_DISPATCH(Operations)() * static_cast<double>(kSteps) * threads / (seconds / threads);
}
}  // namespace upweave::bench
#endif
