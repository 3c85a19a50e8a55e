// The block product by bfloat16 dot products: each 32-bit element of rows and weights is a pair of
// neighbouring input channels, and one instruction adds both products to a float32 sum. Highway has no
// operation that is sure to become it, so this one block speaks to the compiler directly.
#include "engine/cpu/conv_block.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define UPWEAVE_BF16 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")))

namespace upweave::cpu {
namespace {

template <int R, int N>
UPWEAVE_BF16 void product(const BlockProduct& p) {
  constexpr int kLanes = 16;
  __m512 acc[R][N];
  const __mmask16 tail = static_cast<__mmask16>((1u << (p.columns - (N - 1) * kLanes)) - 1);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) acc[r][c] = _mm512_setzero_ps();
  }
  const float* __restrict w = p.weights;
  for (int64_t s = 0; s < p.segments; ++s) {
    w += p.skips[s];
    const float* __restrict row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) row[r] = p.rows[r] + p.offsets[s];
#pragma GCC unroll 4
    for (int64_t k = 0; k < p.depth; ++k) {
      __m512bh b[N];
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) b[c] = (__m512bh)_mm512_loadu_ps(w + c * kLanes);
      w += N * kLanes;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512bh a = (__m512bh)_mm512_set1_ps(row[r][k]);
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], a, b[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N - 1; ++c) _mm512_storeu_ps(p.out[r] + c * kLanes, acc[r][c]);
    _mm512_mask_storeu_ps(p.out[r] + (N - 1) * kLanes, tail, acc[r][N - 1]);
  }
}

template <int R>
void any_product(const BlockProduct& p) {
  switch ((p.columns + 15) / 16) {
    case 1:
      return product<R, 1>(p);
    case 2:
      return product<R, 2>(p);
    case 3:
      return product<R, 3>(p);
    case 4:
      return product<R, 4>(p);
  }
}

}  // namespace

const BlockOps* bf16_block_ops() {
  static const BlockOps ops = {
      16,
      4,
      {any_product<1>, any_product<2>, any_product<3>, any_product<4>, any_product<5>, any_product<6>},
      "AVX512_BF16"};
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") ? &ops : nullptr;
}

}  // namespace upweave::cpu

#else
namespace upweave::cpu {
const BlockOps* bf16_block_ops() { return nullptr; }
}  // namespace upweave::cpu
#endif
