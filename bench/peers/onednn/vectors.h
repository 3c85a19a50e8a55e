#pragma once
// AVX-512 helpers for the oneDNN contender's hand-written tails, and its two element types.
#include <immintrin.h>

#include <cstdint>

namespace peers {

using V = __m512;
inline V set(float x) { return _mm512_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

struct Bf16 {
  uint16_t bits;
};

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V load(const Bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline float number(float x) { return x; }
inline float number(Bf16 x) { return _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(x.bits << 16))); }

// Every second of 32 neighbours, from two vectors.
inline V evens(V a, V b) {
  return _mm512_permutex2var_ps(
      a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
inline V odds(V a, V b) {
  return _mm512_permutex2var_ps(
      a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}

inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, V v, __mmask16 mask) { _mm512_mask_storeu_ps(p, mask, v); }
// 32 neighbours past the caches: whole lines in both element types.
inline void stream(float* p, V a, V b) {
  _mm512_stream_ps(p, a);
  _mm512_stream_ps(p + 16, b);
}
#ifdef __AVX512BF16__
inline void store(Bf16* p, V v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}
inline void store(Bf16* p, V v, __mmask16 mask) {
  _mm256_mask_storeu_epi16(p, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}
inline void stream(Bf16* p, V a, V b) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
}
inline Bf16 round_to(Bf16, float x) {
  return {static_cast<uint16_t>(
      _mm_extract_epi16(reinterpret_cast<__m128i>(_mm_cvtneps_pbh(_mm_set1_ps(x))), 0))};
}
#endif
inline float round_to(float, float x) { return x; }

// r[i][j] becomes r[j][i].
inline void transpose(V r[16]) {
  V t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

// Lane i becomes the sum of all lanes of r[i].
inline V sums_of(V r[16]) {
  transpose(r);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) r[i] = _mm512_add_ps(r[i], r[i + step]);
  }
  return r[0];
}

inline V reciprocal(V d) {
  const V r = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, set(2)));
}

inline V inverse_sqrt(V v) {
  const V r = _mm512_rsqrt14_ps(v);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(_mm512_mul_ps(_mm512_mul_ps(v, set(0.5f)), r), r, set(1.5f)));
}

inline V exp(V x) {  // 2^n p(r), |r| <= ln2/2
  x = _mm512_max_ps(_mm512_min_ps(x, set(88)), set(-87));
  const V n = _mm512_roundscale_ps(_mm512_mul_ps(x, set(1.44269504f)), 0);
  const V r = _mm512_fnmadd_ps(n, set(-2.12194440e-4f), _mm512_fnmadd_ps(n, set(0.693359375f), x));
  V p = set(1.f / 720);
  for (const float c : {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) p = fma(p, r, set(c));
  return _mm512_scalef_ps(p, n);
}

// exp of x clamped to [0, 1], by its series around 1/2.
inline V exp_clamped(V x) {
  const V t = _mm512_sub_ps(_mm512_min_ps(_mm512_max_ps(x, _mm512_setzero_ps()), set(1)), set(0.5f));
  V p = set(1.f / 5040);
  for (const float c : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) p = fma(p, t, set(c));
  return _mm512_mul_ps(p, set(1.64872127f));
}

inline V tanh(V x) {
  const V e = exp(_mm512_mul_ps(x, set(-2)));
  return _mm512_mul_ps(_mm512_sub_ps(set(1), e), reciprocal(_mm512_add_ps(set(1), e)));
}

// x/2 (1 + erf(x/sqrt 2)), erf(z) = z P(z^2) / Q(z^2) on [-4, 4] within 6e-8.
inline V gelu(V x) {
  const V z = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(x, set(0.70710678f)), set(4)), set(-4));
  const V s = _mm512_mul_ps(z, z);
  V p = set(1.921721884e-8f);
  for (const float c :
       {-1.990319819e-6f, 1.555363179e-4f, 4.293033356e-3f, 5.243341845e-2f, 2.139441930e-1f, 1.128378677f})
    p = fma(p, s, set(c));
  V q = set(1.098033094e-3f);
  for (const float c : {1.555105594e-2f, 1.207994254e-1f, 5.229307619e-1f, 1.f}) q = fma(q, s, set(c));
  const V half = _mm512_mul_ps(x, set(0.5f));
  return fma(half, _mm512_mul_ps(_mm512_mul_ps(z, p), reciprocal(q)), half);
}

}  // namespace peers
