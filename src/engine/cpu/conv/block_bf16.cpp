// The block product by bfloat16 dot products: each 32-bit element of rows and weights is a pair of
// neighbouring input channels, and one instruction adds both products to a float32 sum. Highway has no
// operation that is sure to become it, so this one block speaks to the compiler directly.
#include "engine/cpu/conv/block.h"

// It is GCC's: clang's vectors of bfloat16 are no others' bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define UPWEAVE_BF16 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")))

namespace upweave::cpu {
namespace {

// acc + a.odd * b.odd + a.even * b.even, in this order: as the dot product rounds it.
template <Pairs kPairs>
UPWEAVE_BF16 inline __m512 add_pair(__m512 acc, __m512 a, __m512 b) {
  if constexpr (kPairs == Pairs::kDotProducts) return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
  using Bits = uint32_t __attribute__((vector_size(64)));
  const Bits x = (Bits)a, y = (Bits)b;
  acc = _mm512_fmadd_ps((__m512)(x & 0xffff0000u), (__m512)(y & 0xffff0000u), acc);
  return _mm512_fmadd_ps((__m512)(x << 16), (__m512)(y << 16), acc);
}

template <Pairs kPairs, int R, int N>
UPWEAVE_BF16 void product(const BlockProduct& p) {
  constexpr int kLanes = 16;
  __m512 acc[R][N];
  const __mmask16 tail = static_cast<__mmask16>((1u << (p.columns - (N - 1) * kLanes)) - 1);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      acc[r][c] = p.resume ? _mm512_maskz_loadu_ps(c + 1 < N ? 0xffff : tail, p.out[r] + c * kLanes)
                           : _mm512_setzero_ps();
    }
  }
  const float* __restrict w = p.weights;
  for (int64_t s = 0; s < p.segments; ++s) {
    w += p.skips[s];
    const float* __restrict row[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) row[r] = p.rows[r] + p.offsets[s];
#pragma GCC unroll 4
    for (int64_t k = 0; k < p.depth; ++k) {
      __m512 b[N];
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) b[c] = _mm512_loadu_ps(w + c * kLanes);
      w += N * kLanes;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512 a = _mm512_set1_ps(row[r][k]);
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) acc[r][c] = add_pair<kPairs>(acc[r][c], a, b[c]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N - 1; ++c) _mm512_storeu_ps(p.out[r] + c * kLanes, acc[r][c]);
    _mm512_mask_storeu_ps(p.out[r] + (N - 1) * kLanes, tail, acc[r][N - 1]);
  }
}

constexpr int kRows[kPanelVectors] = {12, 12, 8, 6};

template <Pairs kPairs, int R, int N = 1>
void any_product(const BlockProduct& p) {
  if constexpr (R <= kRows[N - 1]) {
    if (p.columns <= N * 16) return product<kPairs, R, N>(p);
    if constexpr (N < kPanelVectors) any_product<kPairs, R, N + 1>(p);
  }
}

template <Pairs kPairs>
constexpr BlockOps kOps = {
    16,
    kPanelVectors,
    {kRows[0], kRows[1], kRows[2], kRows[3]},
    {any_product<kPairs, 1>, any_product<kPairs, 2>, any_product<kPairs, 3>, any_product<kPairs, 4>,
     any_product<kPairs, 5>, any_product<kPairs, 6>, any_product<kPairs, 7>, any_product<kPairs, 8>,
     any_product<kPairs, 9>, any_product<kPairs, 10>, any_product<kPairs, 11>, any_product<kPairs, 12>},
    "AVX512_BF16"};

UPWEAVE_BF16 bool any_below(const uint16_t* data, int64_t n, uint16_t least) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
  __m512i smallest = _mm512_set1_epi16(-1);  // of |x| - 1, where zero becomes the largest
  for (int64_t i = 0; i < n; i += 32) {
    const __mmask32 in = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
    const __m512i x = _mm512_maskz_loadu_epi16(in, data + i);
    smallest = _mm512_min_epu16(smallest, _mm512_sub_epi16(_mm512_and_si512(x, magnitude), one));
  }
  return _mm512_cmplt_epu16_mask(smallest, _mm512_set1_epi16(static_cast<short>(least - 1))) != 0;
}

}  // namespace

const BlockOps* bf16_block_ops(Pairs pairs) {
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) return nullptr;
  return pairs == Pairs::kDotProducts ? &kOps<Pairs::kDotProducts> : &kOps<Pairs::kMultiplyAdds>;
}

bool bf16_any_below(const uint16_t* data, int64_t n, uint16_t least) { return any_below(data, n, least); }

}  // namespace upweave::cpu

#else
namespace upweave::cpu {
const BlockOps* bf16_block_ops(Pairs) { return nullptr; }
bool bf16_any_below(const uint16_t*, int64_t, uint16_t) { return false; }
}  // namespace upweave::cpu
#endif
