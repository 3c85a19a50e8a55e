#pragma once
// AVX-512 helpers for the oneDNN contender's hand-written tails.
#include <immintrin.h>

namespace peers {

using V = __m512;
inline V set(float x) { return _mm512_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

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

inline V tanh(V x) {
  const V e = exp(_mm512_mul_ps(x, set(-2)));
  return _mm512_mul_ps(_mm512_sub_ps(set(1), e), reciprocal(_mm512_add_ps(set(1), e)));
}

// x Phi(x) by Abramowitz & Stegun 7.1.26: |error of erf| < 2e-7.
inline V gelu(V x) {
  const V z = _mm512_mul_ps(_mm512_abs_ps(x), set(0.70710678f));
  const V t = reciprocal(fma(z, set(0.3275911f), set(1)));
  V p = set(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(p, t, set(c));
  const V tail =
      _mm512_mul_ps(_mm512_mul_ps(p, t), exp(_mm512_mul_ps(z, _mm512_sub_ps(set(0), z))));  // 1 - erf(z)
  const V half = _mm512_mul_ps(x, set(0.5f));
  // x/2 (1 + sign(x) (1 - tail))
  return fma(_mm512_abs_ps(half), _mm512_sub_ps(set(1), tail), half);
}

}  // namespace peers
