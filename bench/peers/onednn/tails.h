#pragma once
// What follows the convolution, by hand, on the 64 channels of a tile's outputs found through a View. Rows go
// out 32 columns at a time, so that every store past the caches is whole lines.
#include "tiles.h"

namespace peers {

// layer norm, average of 2x2x2, gelu: one pooled row of 32. Variances are E[x^2] - m^2.
template <class T>
void tail_layernorm_pool(const View& v, int d, int h, T* out, size_t channel_stride) {
  alignas(64) float pooled[32 * 64];
  for (int w = 0; w < 32; w += 2) {  // two pooled columns are 16 voxels
    const float* p[16];
    V s[16], q[16];
    for (int i = 0; i < 16; ++i) {
      p[i] = v.at(i % 8, d, h) + (w + i / 8) * v.w_stride;
      const V x0 = load(p[i]), x1 = load(p[i] + 16), x2 = load(p[i] + 32), x3 = load(p[i] + 48);
      s[i] = _mm512_add_ps(_mm512_add_ps(x0, x1), _mm512_add_ps(x2, x3));
      q[i] = fma(x0, x0, fma(x1, x1, fma(x2, x2, _mm512_mul_ps(x3, x3))));
    }
    const V mean = _mm512_mul_ps(sums_of(s), set(1.f / 64));
    const V var = _mm512_fnmadd_ps(mean, mean, _mm512_mul_ps(sums_of(q), set(1.f / 64)));
    const V rstd = _mm512_mul_ps(inverse_sqrt(_mm512_add_ps(var, set(1e-5f))), set(0.125f));
    alignas(64) float scale[16], shift[16];
    _mm512_store_ps(scale, rstd);
    _mm512_store_ps(shift, _mm512_mul_ps(mean, rstd));
    for (int u = 0; u < 2; ++u) {
      V z[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
      float offset = 0;
      for (int i = u * 8; i < u * 8 + 8; ++i) {
        offset += shift[i];
        for (int c = 0; c < 4; ++c) z[c] = fma(load(p[i] + 16 * c), set(scale[i]), z[c]);
      }
      for (int c = 0; c < 4; ++c)
        _mm512_store_ps(pooled + (w + u) * 64 + 16 * c, _mm512_sub_ps(z[c], set(offset)));
    }
  }
  for (int c = 0; c < 64; c += 16) {
    V r[2][16];
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 16; ++i) r[half][i] = _mm512_load_ps(pooled + (half * 16 + i) * 64 + c);
      transpose(r[half]);
    }
    for (int i = 0; i < 16; ++i) stream(out + (c + i) * channel_stride, gelu(r[0][i]), gelu(r[1][i]));
  }
}

// 16 columns of an output row, both width parities interleaved, channels c..c+15 of each in r.
inline void columns(const float* even, const float* odd, size_t w_stride, int c, V r[16]) {
  for (int i = 0; i < 8; ++i) {
    r[2 * i] = load(even + i * w_stride + c);
    r[2 * i + 1] = load(odd + i * w_stride + c);
  }
}

// layer norm, gelu: one output row of 64.
template <class T>
void tail_layernorm(const float* even, const float* odd, size_t ws, T* out, size_t channel_stride) {
  for (int w0 = 0; w0 < 64; w0 += 32) {
    alignas(64) float block[2][64 * 16];
    V scale[2], shift[2];
    for (int half = 0; half < 2; ++half, even += 8 * ws, odd += 8 * ws) {
      V s = _mm512_setzero_ps(), q = s;
      for (int c = 0; c < 64; c += 16) {
        V r[16];
        columns(even, odd, ws, c, r);
        transpose(r);
        for (int i = 0; i < 16; ++i) {
          _mm512_store_ps(block[half] + (c + i) * 16, r[i]);
          s = _mm512_add_ps(s, r[i]);
          q = fma(r[i], r[i], q);
        }
      }
      const V mean = _mm512_mul_ps(s, set(1.f / 64));
      const V var = _mm512_fnmadd_ps(mean, mean, _mm512_mul_ps(q, set(1.f / 64)));
      scale[half] = inverse_sqrt(_mm512_add_ps(var, set(1e-5f)));
      shift[half] = _mm512_mul_ps(mean, scale[half]);
    }
    for (int c = 0; c < 64; ++c) {
      const auto value = [&](int half) {
        return gelu(_mm512_fmsub_ps(_mm512_load_ps(block[half] + c * 16), scale[half], shift[half]));
      };
      stream(out + c * channel_stride + w0, value(0), value(1));
    }
  }
}

// max over 6x6x6, sum over channels: one row of 10.
template <class T>
void tail_max(const View& v, int d, int h, T* out, float bias) {
  for (int w = 0; w < 10; ++w) {
    V m[4] = {set(-3e38f), set(-3e38f), set(-3e38f), set(-3e38f)};
    for (int z = 0; z < 3; ++z) {
      for (int y = 0; y < 3; ++y) {
        for (int q = 0; q < 8; ++q) {
          const float* p = v.at(q, d + z, h + y) + 3 * w * v.w_stride;
          for (int i = 0; i < 3; ++i, p += v.w_stride) {
            for (int c = 0; c < 4; ++c) m[c] = _mm512_max_ps(m[c], load(p + 16 * c));
          }
        }
      }
    }
    const V sum = _mm512_add_ps(_mm512_add_ps(m[0], m[1]), _mm512_add_ps(m[2], m[3]));
    out[w] = round_to(T{}, bias + _mm512_reduce_add_ps(sum));
  }
}

// Sums of exp(clamp(x, 0, 1)) by channel: one output row of 64.
inline void tail_exp_sums(const float* even, const float* odd, size_t ws, float* sums) {
  V s[4] = {load(sums), load(sums + 16), load(sums + 32), load(sums + 48)};
  for (int w = 0; w < 32; ++w, even += ws, odd += ws) {
    for (int c = 0; c < 4; ++c)
      s[c] = _mm512_add_ps(s[c],
                           _mm512_add_ps(exp_clamped(load(even + 16 * c)), exp_clamped(load(odd + 16 * c))));
  }
  for (int c = 0; c < 4; ++c) store(sums + 16 * c, s[c]);
}

// exp(clamp(x, 0, 1)) times a factor a channel stored: one output row of 64. With `sums`, adds to them too.
template <class T>
void tail_exp(const float* even, const float* odd, size_t ws, T* out, size_t channel_stride,
              const float* factor, float* sums) {
  for (int w0 = 0; w0 < 64; w0 += 32, even += 16 * ws, odd += 16 * ws) {
    for (int c = 0; c < 64; c += 16) {
      V r[2][16], s = _mm512_setzero_ps();
      for (int half = 0; half < 2; ++half) {
        columns(even + half * 8 * ws, odd + half * 8 * ws, ws, c, r[half]);
        for (V& x : r[half]) {
          x = exp_clamped(x);
          s = _mm512_add_ps(s, x);
          if (factor) x = _mm512_mul_ps(x, load(factor + c));
        }
        transpose(r[half]);
      }
      if (sums) store(sums + c, _mm512_add_ps(load(sums + c), s));
      for (int i = 0; i < 16; ++i) stream(out + (c + i) * channel_stride + w0, r[0][i], r[1][i]);
    }
  }
}

}  // namespace peers
