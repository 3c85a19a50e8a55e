#include <algorithm>
#include <cmath>

#include "engine/cpu/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/kernels/columns.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "engine/cpu/kernels/math-inl.h"

// Reductions down the columns of a tile (over positions, channels in lanes) and pools over its positions.
HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {

constexpr int64_t kBlock = 128;  // rows of one float32 partial sum

// total[c] += sum over rows of f(x, c), in float32 blocks added in float64.
template <class F>
HWY_INLINE void AddColumns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* total, F f) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float part[64 > HWY_MAX_BYTES / 4 ? 64 : HWY_MAX_BYTES / 4];
  for (int64_t b = 0; b < rows; b += kBlock) {
    const int64_t end = std::min(b + kBlock, rows);
    for (int64_t c = 0; c < cols; c += lanes) {
      VF sum = hn::Zero(d);
      for (int64_t r = b; r < end; ++r) sum = f(sum, hn::LoadU(d, x + r * ld + c), c);
      hn::Store(sum, d, part);
      for (int64_t i = 0; i < lanes && c + i < cols; ++i) total[c + i] += part[i];
    }
  }
}

void FoldColumns(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, double* out,
                 float* scratch) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (fold == Fold::kSum || fold == Fold::kMean) {
    std::fill(out, out + cols, 0.0);
    AddColumns(x, ld, rows, cols, out, [](VF s, VF v, int64_t) HWY_ATTR { return hn::Add(s, v); });
    return;  // the caller divides the whole sum of a mean
  }
  for (int64_t c = 0; c < cols; c += lanes) {
    VF best = hn::LoadU(d, x + c);
    for (int64_t r = 1; r < rows; ++r) {
      const VF v = hn::LoadU(d, x + r * ld + c);
      best = fold == Fold::kMax ? MaxNan(best, v) : MinNan(best, v);
    }
    hn::StoreU(best, d, scratch + c);
  }
  for (int64_t c = 0; c < cols; ++c) out[c] = scratch[c];
}

// The largest of each column and the sum of exp(x - largest), or of exp(x) where the largest is infinite.
void ExpSumColumns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* top, double* sum,
                   float* scratch) {
  FoldColumns(Fold::kMax, x, ld, rows, cols, top, scratch);
  for (int64_t c = 0; c < padded(cols); ++c) {
    if (c >= cols || std::isinf(scratch[c])) scratch[c] = 0;
  }
  std::fill(sum, sum + cols, 0.0);
  AddColumns(x, ld, rows, cols, sum, [&](VF s, VF v, int64_t c) HWY_ATTR {
    return hn::Add(s, Exp(hn::Sub(v, hn::LoadU(DF(), scratch + c))));
  });
}

// As for rows: differences from the rounded mean, whose own sum corrects both results.
void MomentsColumns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2,
                    float* scratch) {
  const double n = static_cast<double>(rows);
  std::fill(mean, mean + cols, 0.0);
  std::fill(m2, m2 + cols, 0.0);
  AddColumns(x, ld, rows, cols, mean, [](VF s, VF v, int64_t) HWY_ATTR { return hn::Add(s, v); });
  for (int64_t c = 0; c < cols; ++c) {
    scratch[c] = static_cast<float>(mean[c] / n);
    mean[c] = 0;
  }
  for (int64_t c = cols; c < padded(cols); ++c) scratch[c] = 0;
  AddColumns(x, ld, rows, cols, mean, [&](VF s, VF v, int64_t c) HWY_ATTR {
    return hn::Add(s, hn::Sub(v, hn::LoadU(DF(), scratch + c)));
  });
  AddColumns(x, ld, rows, cols, m2, [&](VF s, VF v, int64_t c) HWY_ATTR {
    const VF e = hn::Sub(v, hn::LoadU(DF(), scratch + c));
    return hn::MulAdd(e, e, s);
  });
  for (int64_t c = 0; c < cols; ++c) {
    m2[c] -= mean[c] * mean[c] / n;
    mean[c] = scratch[c] + mean[c] / n;
  }
}

template <class F>
HWY_INLINE VF Window(const float* corner, const Extents& in, int64_t ld, const Extents& window, VF start,
                     F f) {
  VF acc = start;
  for (int64_t i = 0; i < window[0]; ++i) {
    for (int64_t j = 0; j < window[1]; ++j) {
      const float* p = corner + (i * in[1] + j) * in[2] * ld;
      for (int64_t k = 0; k < window[2]; ++k) acc = f(acc, hn::LoadU(DF(), p + k * ld));
    }
  }
  return acc;
}

void PoolTile(Pooling pooling, const float* x, const Extents& in, int64_t ld, const Extents& window,
              const Extents& stride, const float* sign, float* out, const Extents& extent) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF scale = Splat(static_cast<float>(1.0 / static_cast<double>(window[0] * window[1] * window[2])));
  for (int64_t od = 0; od < extent[0]; ++od) {
    for (int64_t oh = 0; oh < extent[1]; ++oh) {
      for (int64_t ow = 0; ow < extent[2]; ++ow, out += ld) {
        const float* corner = x + ((od * stride[0] * in[1] + oh * stride[1]) * in[2] + ow * stride[2]) * ld;
        for (int64_t c = 0; c < ld; c += lanes) {
          const float* p = corner + c;
          VF y;
          if (pooling == Pooling::kAvg || pooling == Pooling::kSum) {
            y = Window(p, in, ld, window, hn::Zero(d), [](VF a, VF v) HWY_ATTR { return hn::Add(a, v); });
            if (pooling == Pooling::kAvg) y = hn::Mul(y, scale);
          } else if (sign) {
            const VF s = hn::LoadU(d, sign + c);
            const VF first = hn::Mul(hn::LoadU(d, p), s);
            y = pooling == Pooling::kMax
                    ? Window(p, in, ld, window, first,
                             [&](VF a, VF v) HWY_ATTR { return MaxNan(a, hn::Mul(v, s)); })
                    : Window(p, in, ld, window, first,
                             [&](VF a, VF v) HWY_ATTR { return MinNan(a, hn::Mul(v, s)); });
            y = hn::Mul(y, s);
          } else {
            const VF first = hn::LoadU(d, p);
            y = pooling == Pooling::kMax
                    ? Window(p, in, ld, window, first, [](VF a, VF v) HWY_ATTR { return MaxNan(a, v); })
                    : Window(p, in, ld, window, first, [](VF a, VF v) HWY_ATTR { return MinNan(a, v); });
          }
          hn::StoreU(y, d, out + c);
        }
      }
    }
  }
}

HWY_INLINE VF Combine(Pooling pooling, VF a, VF b) {
  return pooling == Pooling::kMax ? MaxNan(a, b) : pooling == Pooling::kMin ? MinNan(a, b) : hn::Add(a, b);
}

float CombineOne(Pooling pooling, float a, float b) {
  if (pooling == Pooling::kAvg || pooling == Pooling::kSum) return a + b;
  return std::isnan(b) || (pooling == Pooling::kMax ? b > a : b < a) ? b : a;
}

void PoolRows(Pooling pooling, const float* const* rows, int count, int64_t window, int64_t stride, int64_t n,
              float scale, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF s = Splat(scale);
  if (window == 2 && stride == 2) {
    for (int64_t k = 0; k < n; k += lanes) {
      VF even, odd;
      hn::LoadInterleaved2(d, rows[0] + 2 * k, even, odd);
      for (int r = 1; r < count; ++r) {
        VF e, o;
        hn::LoadInterleaved2(d, rows[r] + 2 * k, e, o);
        even = Combine(pooling, even, e);
        odd = Combine(pooling, odd, o);
      }
      hn::StoreU(hn::Mul(Combine(pooling, even, odd), s), d, out + k);
    }
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    float all = 0;
    for (int64_t e = 0; e < window; ++e) {
      float v = rows[0][k * stride + e];
      for (int r = 1; r < count; ++r) v = CombineOne(pooling, v, rows[r][k * stride + e]);
      all = e == 0 ? v : CombineOne(pooling, all, v);
    }
    out[k] = all * scale;
  }
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {

HWY_EXPORT(FoldColumns);
HWY_EXPORT(MomentsColumns);
HWY_EXPORT(ExpSumColumns);
HWY_EXPORT(PoolTile);
HWY_EXPORT(PoolRows);

void fold_columns(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, double* out,
                  float* scratch) {
  HWY_DYNAMIC_DISPATCH(FoldColumns)(fold, x, ld, rows, cols, out, scratch);
}
void moments_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2,
                     float* scratch) {
  HWY_DYNAMIC_DISPATCH(MomentsColumns)(x, ld, rows, cols, mean, m2, scratch);
}
void exp_sum_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* top, double* sum,
                     float* scratch) {
  HWY_DYNAMIC_DISPATCH(ExpSumColumns)(x, ld, rows, cols, top, sum, scratch);
}
void pool_tile(Pooling pooling, const float* x, const Extents& in, int64_t ld, const Extents& window,
               const Extents& stride, const float* sign, float* out, const Extents& extent) {
  HWY_DYNAMIC_DISPATCH(PoolTile)(pooling, x, in, ld, window, stride, sign, out, extent);
}

void pool_rows(Pooling pooling, const float* const* rows, int count, int64_t window, int64_t stride,
               int64_t n, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(PoolRows)(pooling, rows, count, window, stride, n, scale, out);
}

}  // namespace upweave::cpu
#endif
