#include <cstring>

#include "base/dtype.h"
#include "engine/cpu/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/kernels/move.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "engine/cpu/kernels/math-inl.h"
#include "hwy/cache_control.h"

// Between memory (N C D H W, three element types) and tiles (float32, channels last).
HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {

using DU16 = hn::Rebind<uint16_t, DF>;
using DU32 = hn::RebindToUnsigned<DF>;

HWY_INLINE VF FromBf16(const uint16_t* p) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), hn::LoadU(DU16(), p))));
}

// Sign, exponent and mantissa move to their places; a multiplication by 2^112 mends the exponent, subnormals
// included, and what was infinity or NaN gets the full exponent back.
HWY_INLINE VF FromF16(const uint16_t* p) {
  const DU32 du;
  const auto h = hn::PromoteTo(du, hn::LoadU(DU16(), p));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(h, hn::Set(du, 0x7fffu)));
  const VF scaled = hn::Mul(hn::BitCast(DF(), magnitude), Splat(0x1p112f));
  const auto special =
      hn::And(hn::VecFromMask(du, hn::Gt(magnitude, hn::Set(du, 0x0f7fffffu))), hn::Set(du, 0x7f800000u));
  const auto sign = hn::ShiftLeft<16>(hn::And(h, hn::Set(du, 0x8000u)));
  return hn::BitCast(DF(), hn::Or(hn::Or(hn::BitCast(du, scaled), special), sign));
}

// Round to nearest, ties to even, on the integer: the result is the upper half of each lane. NaN keeps its
// top bits and stays NaN.
HWY_INLINE auto ToBf16(VF v) {
  const DU32 du;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto nan = hn::Or(u, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
}

// Values from 2^-14 on are rounded on the integer; below, adding 0.5 lets the adder round to multiples of
// 2^-24. The result is the upper half of each lane.
HWY_INLINE auto ToF16(VF v) {
  const DU32 du;
  const auto u = hn::BitCast(du, v);
  const auto sign = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 0x8000u));
  const auto a = hn::And(u, hn::Set(du, 0x7fffffffu));
  const auto odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1u));
  auto normal = hn::Sub(hn::Add(a, hn::Add(odd, hn::Set(du, 0xfffu))), hn::Set(du, 112u << 23));
  normal = hn::Min(hn::ShiftRight<13>(normal), hn::Set(du, 0x7c00u));  // overflow is infinity
  const auto small =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(DF(), a), Splat(0.5f))), hn::Set(du, 0x3f000000u));
  auto h = hn::IfThenElse(hn::Lt(a, hn::Set(du, 113u << 23)), small, normal);
  h = hn::IfThenElse(hn::Gt(a, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7e00u), h);
  return hn::ShiftLeft<16>(hn::Or(h, sign));
}

template <class Load>
HWY_INLINE void Expand16(const uint16_t* src, int64_t n, float* dst, Load load) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load(src + i), DF(), dst + i);
  if (i < n) {
    HWY_ALIGN uint16_t in[HWY_MAX_BYTES / 2] = {};
    HWY_ALIGN float out[HWY_MAX_BYTES / 4];
    std::memcpy(in, src + i, static_cast<size_t>(n - i) * 2);
    hn::Store(load(in), DF(), out);
    std::memcpy(dst + i, out, static_cast<size_t>(n - i) * 4);
  }
}

void Expand(const void* src, Dtype type, int64_t n, float* dst) {
  switch (type) {
    case Dtype::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * 4);
      return;
    case Dtype::kF16:
      return Expand16(static_cast<const uint16_t*>(src), n, dst,
                      [](const uint16_t* p) HWY_ATTR { return FromF16(p); });
    case Dtype::kBF16:
      return Expand16(static_cast<const uint16_t*>(src), n, dst,
                      [](const uint16_t* p) HWY_ATTR { return FromBf16(p); });
    case Dtype::kF64:
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(static_cast<const double*>(src)[i]);
      return;
  }
}

template <class Convert>
HWY_INLINE void Shrink16(const float* src, int64_t n, uint16_t* dst, bool stream, Convert convert) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const auto shrunk = [&](const float* p) HWY_ATTR {
    const auto upper = hn::ShiftRight<16>(convert(hn::LoadU(DF(), p)));
    return hn::DemoteTo(DU16(), hn::BitCast(hn::RebindToSigned<DF>(), upper));
  };
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<uint16_t, DF> d16;  // the upper halves of two vectors are one
  const auto both = [&](const float* p) HWY_ATTR {
    const auto lo = convert(hn::LoadU(DF(), p)), hi = convert(hn::LoadU(DF(), p + lanes));
    return hn::ConcatOdd(d16, hn::BitCast(d16, hi), hn::BitCast(d16, lo));
  };
  if (stream && n % 32 == 0 && reinterpret_cast<uintptr_t>(dst) % 64 == 0) {  // whole lines only
    for (; i + 2 * lanes <= n; i += 2 * lanes) hn::Stream(both(src + i), d16, dst + i);
  }
  for (; i + 2 * lanes <= n; i += 2 * lanes) hn::StoreU(both(src + i), d16, dst + i);
#else
  (void)stream;
#endif
  for (; i + lanes <= n; i += lanes) hn::StoreU(shrunk(src + i), DU16(), dst + i);
  if (i < n) {
    HWY_ALIGN float in[HWY_MAX_BYTES / 4] = {};
    HWY_ALIGN uint16_t out[HWY_MAX_BYTES / 2];
    std::memcpy(in, src + i, static_cast<size_t>(n - i) * 4);
    hn::StoreU(shrunk(in), DU16(), out);
    std::memcpy(dst + i, out, static_cast<size_t>(n - i) * 2);
  }
}

void Shrink(const float* src, int64_t n, void* dst, Dtype type, bool stream) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  switch (type) {
    case Dtype::kF32: {
      float* out = static_cast<float*>(dst);
      if (!stream) {
        std::memcpy(out, src, static_cast<size_t>(n) * 4);
        return;
      }
      int64_t i = 0;  // whole lines only: a partial one would be read back to be completed
      while (i < n && reinterpret_cast<uintptr_t>(out + i) % 64 != 0) out[i] = src[i], ++i;
      for (; i + 16 <= n; i += 16) {
        for (int64_t k = 0; k < 16; k += lanes) hn::Stream(hn::LoadU(d, src + i + k), d, out + i + k);
      }
      for (; i < n; ++i) out[i] = src[i];
      return;
    }
    case Dtype::kF16:
      return Shrink16(src, n, static_cast<uint16_t*>(dst), stream, [](VF v) HWY_ATTR { return ToF16(v); });
    case Dtype::kBF16:
      return Shrink16(src, n, static_cast<uint16_t*>(dst), stream, [](VF v) HWY_ATTR { return ToBf16(v); });
    case Dtype::kF64:
      for (int64_t i = 0; i < n; ++i) static_cast<double*>(dst)[i] = src[i];
      return;
  }
}

void SplitRows(const float* src, int64_t src_ld, int64_t rows, int64_t n, uint16_t* upper, uint16_t* lower,
               int64_t dst_ld) {
  const DU32 du;
  for (int64_t r = 0; r < rows; ++r, src += src_ld, upper += dst_ld, lower += dst_ld) {
    int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::Repartition<uint16_t, DF> d16;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      const auto a = hn::BitCast(d16, hn::LoadU(DF(), src + i));
      const auto b = hn::BitCast(d16, hn::LoadU(DF(), src + i + lanes));
      hn::StoreU(hn::ConcatOdd(d16, b, a), d16, upper + i);
      hn::StoreU(hn::ConcatEven(d16, b, a), d16, lower + i);
    }
    if (i == n) continue;
#endif
    Shrink16(src + i, n - i, upper + i, false, [&](VF v) HWY_ATTR { return hn::BitCast(du, v); });
    Shrink16(src + i, n - i, lower + i, false,
             [&](VF v) HWY_ATTR { return hn::ShiftLeft<16>(hn::BitCast(du, v)); });
  }
}

void Join(const uint16_t* upper, const uint16_t* lower, int64_t n, float* dst) {
  Expand16(upper, n, dst, [&](const uint16_t* p) HWY_ATTR { return FromBf16(p); });
  const DU32 du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(du));
  uint32_t* bits = reinterpret_cast<uint32_t*>(dst);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Or(hn::LoadU(du, bits + i), hn::PromoteTo(du, hn::LoadU(DU16(), lower + i))), du,
               bits + i);
  }
  for (; i < n; ++i) bits[i] |= lower[i];
}

#if HWY_TARGET == HWY_SCALAR
void Transpose(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst, int64_t dst_ld) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) dst[c * dst_ld + r] = src[r * src_ld + c];
  }
}
#else
using D4 = hn::FixedTag<float, 4>;
using D2 = hn::FixedTag<double, 2>;

HWY_INLINE void Transpose4x4(const float* src, int64_t src_ld, float* dst, int64_t dst_ld) {
  const D4 d;
  const D2 d2;
  const auto r0 = hn::LoadU(d, src), r1 = hn::LoadU(d, src + src_ld), r2 = hn::LoadU(d, src + 2 * src_ld),
             r3 = hn::LoadU(d, src + 3 * src_ld);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1)),
             hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3)),
             hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23)), d, dst + dst_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23)), d, dst + 2 * dst_ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23)), d, dst + 3 * dst_ld);
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// Pairs of rows, pairs of pairs, then blocks of four: 64 shuffles for 256 elements.
template <bool kStream>
HWY_INLINE void Transpose16x16(const float* src, int64_t src_ld, float* dst, int64_t dst_ld) {
  const auto put = [](float* to, __m512 v) HWY_ATTR {
    if constexpr (kStream)
      _mm512_stream_ps(to, v);
    else
      _mm512_storeu_ps(to, v);
  };
  __m512 a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(src + i * src_ld);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // a[i + k]: column 4*block + k of rows i to i + 3, by block
    for (int k = 0; k < 2; ++k) {
      const __m512d lo = _mm512_castps_pd(b[i + k]), hi = _mm512_castps_pd(b[i + k + 2]);
      a[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
      a[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
    }
  }
  for (int k = 0; k < 4; ++k) {
    const __m512 lo01 = _mm512_shuffle_f32x4(a[k], a[k + 4], 0x44),
                 hi01 = _mm512_shuffle_f32x4(a[k], a[k + 4], 0xee);
    const __m512 lo23 = _mm512_shuffle_f32x4(a[k + 8], a[k + 12], 0x44),
                 hi23 = _mm512_shuffle_f32x4(a[k + 8], a[k + 12], 0xee);
    put(dst + k * dst_ld, _mm512_shuffle_f32x4(lo01, lo23, 0x88));
    put(dst + (4 + k) * dst_ld, _mm512_shuffle_f32x4(lo01, lo23, 0xdd));
    put(dst + (8 + k) * dst_ld, _mm512_shuffle_f32x4(hi01, hi23, 0x88));
    put(dst + (12 + k) * dst_ld, _mm512_shuffle_f32x4(hi01, hi23, 0xdd));
  }
}
#endif

void TransposeBy4(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst, int64_t dst_ld) {
  const int64_t rows4 = rows / 4 * 4, cols4 = cols / 4 * 4;
  for (int64_t r = 0; r < rows4; r += 4) {
    for (int64_t c = 0; c < cols4; c += 4)
      Transpose4x4(src + r * src_ld + c, src_ld, dst + c * dst_ld + r, dst_ld);
    for (int64_t c = cols4; c < cols; ++c) {
      for (int64_t k = 0; k < 4; ++k) dst[c * dst_ld + r + k] = src[(r + k) * src_ld + c];
    }
  }
  for (int64_t r = rows4; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) dst[c * dst_ld + r] = src[r * src_ld + c];
  }
}

void Transpose(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst, int64_t dst_ld) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const int64_t rows16 = rows / 16 * 16, cols16 = cols / 16 * 16;
  for (int64_t r = 0; r < rows16; r += 16) {
    for (int64_t c = 0; c < cols16; c += 16)
      Transpose16x16<false>(src + r * src_ld + c, src_ld, dst + c * dst_ld + r, dst_ld);
  }
  if (cols16 < cols) TransposeBy4(src + cols16, src_ld, rows16, cols - cols16, dst + cols16 * dst_ld, dst_ld);
  if (rows16 < rows) TransposeBy4(src + rows16 * src_ld, src_ld, rows - rows16, cols, dst + rows16, dst_ld);
#else
  TransposeBy4(src, src_ld, rows, cols, dst, dst_ld);
#endif
}
#endif

bool TransposeStream(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst,
                     int64_t dst_ld) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (rows % 16 || cols % 16 || dst_ld % 16 || reinterpret_cast<uintptr_t>(dst) % 64) return false;
  for (int64_t c = 0; c < cols; c += 16) {
    for (int64_t r = 0; r < rows; r += 16) {
      Transpose16x16<true>(src + r * src_ld + c, src_ld, dst + c * dst_ld + r, dst_ld);
    }
  }
  return true;
#else
  (void)src, (void)src_ld, (void)rows, (void)cols, (void)dst, (void)dst_ld;
  return false;
#endif
}

void ShrinkRows(const float* src, int64_t src_ld, int64_t rows, int64_t n, void* dst, int64_t dst_ld,
                Dtype type, bool stream) {
  const auto each = [&](auto convert) HWY_ATTR {
    uint16_t* to = static_cast<uint16_t*>(dst);
    for (int64_t r = 0; r < rows; ++r) Shrink16(src + r * src_ld, n, to + r * dst_ld, stream, convert);
  };
  if (type == Dtype::kF16) return each([](VF v) HWY_ATTR { return ToF16(v); });
  if (type == Dtype::kBF16) return each([](VF v) HWY_ATTR { return ToBf16(v); });
  for (int64_t r = 0; r < rows; ++r) {
    Shrink(src + r * src_ld, n, static_cast<char*>(dst) + r * dst_ld * size_of(type), type, stream);
  }
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {

HWY_EXPORT(Expand);
HWY_EXPORT(Shrink);
HWY_EXPORT(ShrinkRows);
HWY_EXPORT(SplitRows);
HWY_EXPORT(Join);
HWY_EXPORT(Transpose);
HWY_EXPORT(TransposeStream);

void expand(const void* src, Dtype type, int64_t n, float* dst) {
  HWY_DYNAMIC_DISPATCH(Expand)(src, type, n, dst);
}
void shrink(const float* src, int64_t n, void* dst, Dtype type, bool stream) {
  HWY_DYNAMIC_DISPATCH(Shrink)(src, n, dst, type, stream);
}
void transpose(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst, int64_t dst_ld) {
  HWY_DYNAMIC_DISPATCH(Transpose)(src, src_ld, rows, cols, dst, dst_ld);
}
bool transpose_stream(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst,
                      int64_t dst_ld) {
  return HWY_DYNAMIC_DISPATCH(TransposeStream)(src, src_ld, rows, cols, dst, dst_ld);
}
void shrink_rows(const float* src, int64_t src_ld, int64_t rows, int64_t n, void* dst, int64_t dst_ld,
                 Dtype type, bool stream) {
  HWY_DYNAMIC_DISPATCH(ShrinkRows)(src, src_ld, rows, n, dst, dst_ld, type, stream);
}
void split_rows(const float* src, int64_t src_ld, int64_t rows, int64_t n, uint16_t* upper, uint16_t* lower,
                int64_t dst_ld) {
  HWY_DYNAMIC_DISPATCH(SplitRows)(src, src_ld, rows, n, upper, lower, dst_ld);
}
void join(const uint16_t* upper, const uint16_t* lower, int64_t n, float* dst) {
  HWY_DYNAMIC_DISPATCH(Join)(upper, lower, n, dst);
}
void flush_stream() { hwy::FlushStream(); }

}  // namespace upweave::cpu
#endif
