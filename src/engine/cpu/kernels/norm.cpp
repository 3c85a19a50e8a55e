#include <type_traits>

#include "engine/cpu/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/kernels/norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "engine/cpu/kernels/math-inl.h"

// Norms along rows, sixteen of them at a time: horizontal sums, roots and quotients share vectors.
HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {

constexpr int64_t kBlock = 1024;  // elements of one float32 partial sum
constexpr int64_t kRows = HWY_MAX(kLane, HWY_MAX_BYTES / 4);

#if HWY_TARGET != HWY_SCALAR
// In each block of four lanes, the sums of the four blocks.
HWY_INLINE VF SumBlocks(const VF (&v)[4]) {
  const DF d;
  const hn::Repartition<double, DF> d2;
  const auto pairs = [&](VF a, VF b) HWY_ATTR {
    return hn::BitCast(d2, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = pairs(v[0], v[1]), high = pairs(v[2], v[3]);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d2, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(d2, low, high)));
}

// The blocks of four vectors added up: sixteen sums.
HWY_INLINE void AddBlocks(const VF (&v)[4], float* sums) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const auto halves = [](VF a, VF b) HWY_ATTR {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a.raw, b.raw, 0x44), _mm512_shuffle_f32x4(a.raw, b.raw, 0xee));
  };
  const __m512 low = halves(v[0], v[1]), high = halves(v[2], v[3]);
  _mm512_storeu_ps(
      sums, _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd)));
#else
  const hn::FixedTag<float, 4> d4;
  HWY_ALIGN float blocks[HWY_MAX_BYTES / 4];
  for (int i = 0; i < 4; ++i) {
    hn::Store(v[i], DF(), blocks);
    auto sum = hn::Load(d4, blocks);
    for (size_t b = 4; b < hn::Lanes(DF()); b += 4) sum = hn::Add(sum, hn::Load(d4, blocks + b));
    hn::StoreU(sum, d4, sums + 4 * i);
  }
#endif
}
#endif

// Sums of x - center and of its square along each of sixteen rows of at most kBlock elements; rows from n on
// repeat the last. A null `center` is 0; a null `sums` asks for squares alone, a null `squares` for sums
// alone.
HWY_INLINE void SumBlock(const float* x, int64_t ld, int64_t n, int64_t cols, const float* center,
                         float* sums, float* squares) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
#if HWY_TARGET == HWY_SCALAR
  constexpr int kTogether = 1;
#else
  constexpr int kTogether = 4;
  VF s4[4], q4[4];
#endif
  for (int k = 0; k < kLane; k += kTogether) {
    VF c[kTogether], s[kTogether], q[kTogether];
    const float* row[kTogether];
    for (int i = 0; i < kTogether; ++i) {
      row[i] = x + HWY_MIN(k + i, n - 1) * ld;
      c[i] = center ? Splat(center[k + i]) : hn::Zero(d);
      s[i] = q[i] = hn::Zero(d);
    }
    const auto from = [&](int i, int64_t at) HWY_ATTR {
      const VF v = hn::LoadU(d, row[i] + at);
      return center ? hn::Sub(v, c[i]) : v;
    };
    const auto add = [&](int i, VF e) HWY_ATTR {
      if (sums) s[i] = hn::Add(s[i], e);
      if (squares) q[i] = hn::MulAdd(e, e, q[i]);
    };
    int64_t at = 0;
    for (; at + lanes <= cols; at += lanes) {
      for (int i = 0; i < kTogether; ++i) add(i, from(i, at));
    }
    if (at < cols) {
      const MF valid = hn::FirstN(d, static_cast<size_t>(cols - at));
      for (int i = 0; i < kTogether; ++i) add(i, hn::IfThenElseZero(valid, from(i, at)));
    }
#if HWY_TARGET == HWY_SCALAR
    if (sums) sums[k] = hn::GetLane(s[0]);
    if (squares) squares[k] = hn::GetLane(q[0]);
  }
#else
    if (sums) s4[k / 4] = SumBlocks(s);
    if (squares) q4[k / 4] = SumBlocks(q);
  }
  if (sums) AddBlocks(s4, sums);
  if (squares) AddBlocks(q4, squares);
#endif
}

// The same of rows of any length: blocks are added in float64.
HWY_INLINE void SumRows(const float* x, int64_t ld, int64_t n, int64_t cols, const float* center, float* sums,
                        float* squares) {
  SumBlock(x, ld, n, HWY_MIN(cols, kBlock), center, sums, squares);
  if (cols <= kBlock) return;
  double all[2][kLane];
  for (int k = 0; k < kLane; ++k) {
    if (sums) all[0][k] = sums[k];
    if (squares) all[1][k] = squares[k];
  }
  for (int64_t b = kBlock; b < cols; b += kBlock) {
    SumBlock(x + b, ld, n, HWY_MIN(cols - b, kBlock), center, sums, squares);
    for (int k = 0; k < kLane; ++k) {
      if (sums) all[0][k] += sums[k];
      if (squares) all[1][k] += squares[k];
    }
  }
  for (int k = 0; k < kLane; ++k) {
    if (sums) sums[k] = static_cast<float>(all[0][k]);
    if (squares) squares[k] = static_cast<float>(all[1][k]);
  }
}

// What makes a norm of sixteen rows: (x - center) * scale + shift.
struct Factors {
  HWY_ALIGN float center[kRows] = {};
  HWY_ALIGN float scale[kRows] = {};
  HWY_ALIGN float shift[kRows] = {};

  // 1 / sqrt(mean x^2 + eps). center and shift stay 0.
  HWY_INLINE void Rms(const float* x, int64_t ld, int64_t n, int64_t cols, double eps) {
    const DF d;
    const VF share = Splat(1.0f / static_cast<float>(cols)), small = Splat(static_cast<float>(eps));
    SumRows(x, ld, n, cols, nullptr, nullptr, scale);
    for (int64_t k = 0; k < kLane; k += static_cast<int64_t>(hn::Lanes(d))) {
      const VF root = hn::Sqrt(hn::MulAdd(hn::Load(d, scale + k), share, small));
      hn::Store(hn::Div(Splat(1.0f), root), d, scale + k);
    }
  }

  // With any center c and e = x - c: the mean is c + mean e, the variance mean e^2 - (mean e)^2. The mean of
  // m of n elements is within sqrt(n/m - 1) standard deviations of theirs, so that c from a quarter of them
  // leaves a difference of no less than a quarter of mean e^2, whatever the mean.
  HWY_INLINE void Layer(const float* x, int64_t ld, int64_t n, int64_t cols, double eps) {
    const DF d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), quarter = HWY_MIN(cols, padded((cols + 3) / 4));
    const VF share = Splat(1.0f / static_cast<float>(cols)), small = Splat(static_cast<float>(eps));
    SumRows(x, ld, n, quarter, nullptr, center, nullptr);
    for (int64_t k = 0; k < kLane; k += lanes)
      hn::Store(hn::Mul(hn::Load(d, center + k), Splat(1.0f / static_cast<float>(quarter))), d, center + k);
    SumRows(x, ld, n, cols, center, shift, scale);
    for (int64_t k = 0; k < kLane; k += lanes) {
      const VF mean = hn::Mul(hn::Load(d, shift + k), share);
      const VF var = hn::NegMulAdd(mean, mean, hn::Mul(hn::Load(d, scale + k), share));
      const VF inverse = hn::Div(Splat(1.0f), hn::Sqrt(hn::Add(var, small)));
      hn::Store(inverse, d, scale + k);
      hn::Store(hn::Mul(hn::Neg(mean), inverse), d, shift + k);
    }
  }
};

template <bool kRms>
HWY_INLINE void NormRows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Factors f;
  for (int64_t r = 0; r < rows; r += kLane, x += kLane * ld, out += kLane * ld) {
    const int64_t n = HWY_MIN(kLane, rows - r);
    kRms ? f.Rms(x, ld, n, cols, eps) : f.Layer(x, ld, n, cols, eps);
    for (int64_t k = 0; k < n; ++k) {
      const VF c = Splat(f.center[k]), s = Splat(f.scale[k]), rest = Splat(f.shift[k]);
      for (int64_t i = 0; i < cols; i += lanes) {
        const VF v = hn::LoadU(d, x + k * ld + i);
        hn::StoreU(kRms ? hn::Mul(v, s) : hn::MulAdd(hn::Sub(v, c), s, rest), d, out + k * ld + i);
      }
    }
  }
}

void RmsNormRows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out) {
  NormRows<true>(x, ld, rows, cols, eps, out);
}
void LayerNormRows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out) {
  NormRows<false>(x, ld, rows, cols, eps, out);
}

// The mean of the norms of a window's rows. Lines of `width` rows begin at x + offsets[l]; f[l] are the
// factors of sixteen rows each, of which the window's begin at `first`; `rest` is the sum of their shifts.
template <bool kRms>
HWY_INLINE void NormWindow(const float* x, int64_t ld, const int64_t* offsets, int64_t lines, int64_t width,
                           const Factors* f, int64_t first, float rest, VF share, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto some = [&](int64_t c, auto vectors) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    VF acc[kVectors];
    for (int v = 0; v < kVectors; ++v) acc[v] = hn::Zero(d);
    for (int64_t l = 0; l < lines; ++l) {
      const float* row = x + offsets[l] + c;
      for (int64_t j = first; j < first + width; ++j, row += ld) {
        const VF scale = Splat(f[l].scale[j]), center = Splat(f[l].center[j]);
        for (int v = 0; v < kVectors; ++v) {
          const VF y = hn::LoadU(d, row + v * lanes);
          acc[v] = hn::MulAdd(kRms ? y : hn::Sub(y, center), scale, acc[v]);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(hn::Mul(kRms ? acc[v] : hn::Add(acc[v], Splat(rest)), share), d, out + c + v * lanes);
  };
  int64_t c = 0;
  for (; c + 4 * lanes <= ld; c += 4 * lanes) some(c, std::integral_constant<int, 4>());
  for (; c < ld; c += lanes) some(c, std::integral_constant<int, 1>());
}

template <bool kRms>
HWY_INLINE void NormPoolTile(const float* x, const Extents& in, int64_t ld, int64_t cols, double eps,
                             const Extents& window, float* out, const Extents& extent) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t lines = window[0] * window[1], wide = kLane / window[2];  // windows of one sixteen rows
  const VF share = Splat(1.0f / static_cast<float>(lines * window[2]));
  Factors f[kNormPoolLines];
  HWY_ALIGN float shifts[kRows];
  int64_t offsets[kNormPoolLines];
  for (int64_t l = 0; l < lines; ++l) offsets[l] = (l / window[1] * in[1] + l % window[1]) * in[2] * ld;
  for (int64_t od = 0; od < extent[0]; ++od) {
    for (int64_t oh = 0; oh < extent[1]; ++oh) {
      for (int64_t ow = 0; ow < extent[2]; ow += wide) {
        const int64_t windows = HWY_MIN(wide, extent[2] - ow);
        const float* corner = x + ((od * window[0] * in[1] + oh * window[1]) * in[2] + ow * window[2]) * ld;
        for (int64_t l = 0; l < lines; ++l) {
          const int64_t rows = windows * window[2];
          kRms ? f[l].Rms(corner + offsets[l], ld, rows, cols, eps)
               : f[l].Layer(corner + offsets[l], ld, rows, cols, eps);
        }
        for (int64_t k = 0; !kRms && k < kLane; k += lanes) {
          VF sum = hn::Load(d, f[0].shift + k);
          for (int64_t l = 1; l < lines; ++l) sum = hn::Add(sum, hn::Load(d, f[l].shift + k));
          hn::Store(sum, d, shifts + k);
        }
        for (int64_t w = 0; w < windows; ++w, out += ld) {
          const int64_t first = w * window[2];
          float rest = 0;
          for (int64_t j = first; !kRms && j < first + window[2]; ++j) rest += shifts[j];
          NormWindow<kRms>(corner + first * ld, ld, offsets, lines, window[2], f, first, rest, share, out);
        }
      }
    }
  }
}

void NormPool(bool rms, const float* x, const Extents& in, int64_t ld, int64_t cols, double eps,
              const Extents& window, float* out, const Extents& extent) {
  rms ? NormPoolTile<true>(x, in, ld, cols, eps, window, out, extent)
      : NormPoolTile<false>(x, in, ld, cols, eps, window, out, extent);
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(NormPool);

void rms_norm_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(x, ld, rows, cols, eps, out);
}
void layer_norm_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out) {
  HWY_DYNAMIC_DISPATCH(LayerNormRows)(x, ld, rows, cols, eps, out);
}
void norm_pool_tile(bool rms, const float* x, const Extents& in, int64_t ld, int64_t cols, double eps,
                    const Extents& window, float* out, const Extents& extent) {
  HWY_DYNAMIC_DISPATCH(NormPool)(rms, x, in, ld, cols, eps, window, out, extent);
}

}  // namespace upweave::cpu
#endif
