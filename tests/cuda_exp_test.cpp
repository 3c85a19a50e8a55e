#include <gtest/gtest.h>

#include <cmath>

#include "engine/cuda/bounded_exp.h"

// exp on a short interval: the polynomial is as exact as it was asked to be, also by Horner's rule in
// float32.
namespace upweave::cuda {
namespace {

double worst(const std::vector<float>& c, double slope, double offset, double length) {
  double result = 0;
  for (int i = 0; i <= 100000; ++i) {
    const auto t = static_cast<float>(length * i / 100000);
    float p = 0;
    for (const float x : c) p = std::fma(p, t, x);
    result = std::max(result, std::fabs(p / std::exp(slope * t + offset) - 1));
  }
  return result;
}

TEST(CudaExp, IsAsExactAsAsked) {
  for (const double slope : {0.25, 1.0, 1.7}) {
    for (const double length : {0.5, 1.0, 1.2}) {
      for (const double offset : {-1.0, 0.0, 3.0}) {
        const std::vector<float> fast = exp_polynomial(slope, offset, length, 0x1p-20),
                                 strict = exp_polynomial(slope, offset, length, 0x1p-24);
        ASSERT_FALSE(fast.empty());
        ASSERT_FALSE(strict.empty());
        EXPECT_LE(fast.size(), strict.size());
        for (const float x : strict) EXPECT_GT(x, 0.f);  // so that nothing cancels
        EXPECT_LE(worst(fast, slope, offset, length), 0x1p-20 + 0x1p-22);
        EXPECT_LE(worst(strict, slope, offset, length), 0x1p-24 + 0x1.8p-23);  // and an ulp and a half
      }
    }
  }
}

TEST(CudaExp, LeavesLongIntervalsAlone) {
  EXPECT_TRUE(exp_polynomial(1, 0, 3, 0x1p-24).empty());
  EXPECT_TRUE(exp_polynomial(1, 0, 8, 0x1p-20).empty());
  EXPECT_TRUE(exp_polynomial(-1, 0, 1, 0x1p-24).empty());  // the caller counts from the other end
  EXPECT_TRUE(exp_polynomial(1, 1000, 1, 0x1p-24).empty());
  EXPECT_TRUE(exp_polynomial(std::nan(""), 0, 1, 0x1p-24).empty());
}

}  // namespace
}  // namespace upweave::cuda
