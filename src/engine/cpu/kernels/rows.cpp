#include <cmath>
#include <limits>

#include "engine/cpu/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/kernels/rows.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "engine/cpu/kernels/math-inl.h"

// Reductions along rows and what is made of them. Long rows are summed in float32 blocks whose totals are
// added in float64, so the error does not grow with the row.
HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {

constexpr int64_t kBlock = 1024;  // elements of one float32 partial sum

// Calls f(vector, offset) on `cols` elements; the last vector has `fill` beyond them.
template <class F>
HWY_INLINE void Along(const float* x, int64_t begin, int64_t end, VF fill, F f) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = begin;
  for (; c + lanes <= end; c += lanes) f(hn::LoadU(d, x + c), c);
  if (c < end) {
    const MF valid = hn::FirstN(d, static_cast<size_t>(end - c));
    f(hn::IfThenElse(valid, hn::LoadU(d, x + c), fill), c);
  }
}

template <class F>
HWY_INLINE double SumOf(const float* x, int64_t cols, VF fill, F f) {
  double total = 0;
  for (int64_t b = 0; b < cols; b += kBlock) {
    VF sum = hn::Zero(DF());
    Along(x, b, HWY_MIN(b + kBlock, cols), fill, [&](VF v, int64_t) HWY_ATTR { sum = hn::Add(sum, f(v)); });
    total += hn::GetLane(hn::SumOfLanes(DF(), sum));
  }
  return total;
}

HWY_INLINE double Sum(const float* x, int64_t cols) {
  return SumOf(x, cols, hn::Zero(DF()), [](VF v) HWY_ATTR { return v; });
}

// NaN if any element is; MaxOfLanes alone would lose it on some instruction sets.
HWY_INLINE float Extreme(const float* x, int64_t cols, bool largest) {
  const DF d;
  const VF first = Splat(x[0]);
  VF best = first;
  Along(x, 0, cols, first,
        [&](VF v, int64_t) HWY_ATTR { best = largest ? MaxNan(best, v) : MinNan(best, v); });
  if (!hn::AllTrue(d, hn::Eq(best, best))) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(largest ? hn::MaxOfLanes(d, best) : hn::MinOfLanes(d, best));
}

void FoldRows(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += ld) {
    switch (fold) {
      case Fold::kSum:
        out[r] = static_cast<float>(Sum(x, cols));
        break;
      case Fold::kMean:
        out[r] = static_cast<float>(Sum(x, cols) / static_cast<double>(cols));
        break;
      case Fold::kMax:
        out[r] = Extreme(x, cols, true);
        break;
      case Fold::kMin:
        out[r] = Extreme(x, cols, false);
        break;
      case Fold::kLogSumExp: {
        // An infinite maximum is the answer itself; subtracting it would give NaN.
        const float m = Extreme(x, cols, true);
        if (!std::isfinite(m)) {
          out[r] = m;
          break;
        }
        const VF shift = Splat(m), lowest = Splat(-std::numeric_limits<float>::infinity());
        const double s = SumOf(x, cols, lowest, [&](VF v) HWY_ATTR { return Exp(hn::Sub(v, shift)); });
        out[r] = static_cast<float>(m + std::log(s));
        break;
      }
    }
  }
}

void SoftmaxRows(const float* x, int64_t ld, int64_t rows, int64_t cols, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += ld, out += ld) {
    const VF shift = Splat(Extreme(x, cols, true));
    double total = 0;
    for (int64_t b = 0; b < cols; b += kBlock) {
      VF sum = hn::Zero(DF());
      Along(x, b, HWY_MIN(b + kBlock, cols), Splat(-std::numeric_limits<float>::infinity()),
            [&](VF v, int64_t c) HWY_ATTR {
              const VF e = Exp(hn::Sub(v, shift));
              hn::StoreU(e, DF(), out + c);
              sum = hn::Add(sum, e);
            });
      total += hn::GetLane(hn::SumOfLanes(DF(), sum));
    }
    const VF scale = Splat(static_cast<float>(1.0 / total));
    Along(out, 0, cols, hn::Zero(DF()),
          [&](VF v, int64_t c) HWY_ATTR { hn::StoreU(hn::Mul(v, scale), DF(), out + c); });
  }
}

// Mean and squared differences of one row. The differences are taken from the rounded mean, and their own sum
// corrects both results: exact to float32's rounding of the elements, whatever the mean.
HWY_INLINE void Moments(const float* x, int64_t cols, double* mean, double* m2) {
  const double n = static_cast<double>(cols);
  const float near = static_cast<float>(Sum(x, cols) / n);
  const VF center = Splat(near);
  double shift = 0, squares = 0;
  for (int64_t b = 0; b < cols; b += kBlock) {
    VF s = hn::Zero(DF()), q = hn::Zero(DF());
    Along(x, b, HWY_MIN(b + kBlock, cols), center, [&](VF v, int64_t) HWY_ATTR {
      const VF e = hn::Sub(v, center);
      s = hn::Add(s, e);
      q = hn::MulAdd(e, e, q);
    });
    shift += hn::GetLane(hn::SumOfLanes(DF(), s));
    squares += hn::GetLane(hn::SumOfLanes(DF(), q));
  }
  *mean = near + shift / n;
  *m2 = squares - shift * shift / n;
}

void MomentsRows(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2) {
  for (int64_t r = 0; r < rows; ++r) Moments(x + r * ld, cols, mean + r, m2 + r);
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {

HWY_EXPORT(FoldRows);
HWY_EXPORT(SoftmaxRows);
HWY_EXPORT(MomentsRows);

void fold_rows(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, float* out) {
  HWY_DYNAMIC_DISPATCH(FoldRows)(fold, x, ld, rows, cols, out);
}
void softmax_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, float* out) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRows)(x, ld, rows, cols, out);
}
void moments_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2) {
  HWY_DYNAMIC_DISPATCH(MomentsRows)(x, ld, rows, cols, mean, m2);
}

}  // namespace upweave::cpu
#endif
