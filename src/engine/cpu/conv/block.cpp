#include "engine/cpu/conv/block.h"

#include "engine/cpu/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/conv/block.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// 16 registers hold 6x2 accumulators, two vectors of weights and the broadcast; 32 hold 6x4, four and two.
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
constexpr int kVectors = 2, kRows[kPanelVectors] = {12, 6};
#else
constexpr int kVectors = 4, kRows[kPanelVectors] = {12, 12, 8, 6};
#endif

template <int R, int N>
HWY_ATTR void Product(const BlockProduct& p) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto tail = hn::FirstN(d, static_cast<size_t>(p.columns - (N - 1) * lanes));
  const bool whole = p.columns == N * lanes;
  const float* HWY_RESTRICT w = p.weights;
  const int64_t depth = p.depth, ahead = p.ahead;
  const bool resume = p.resume;
  for (int64_t i = 0; i < p.products; ++i) {
    V acc[R][N];
    if (HWY_UNLIKELY(resume)) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float* out = p.out[r] + i * p.out_next;
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) {
          acc[r][c] =
              whole || c + 1 < N ? hn::LoadU(d, out + c * lanes) : hn::MaskedLoad(tail, d, out + c * lanes);
        }
      }
    } else {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) acc[r][c] = hn::Zero(d);
      }
    }
    for (int64_t s = 0; s < p.segments; ++s) {
      const int64_t offset = p.offsets[s] + i * p.rows_next;
      w += p.skips[s];
      const float* HWY_RESTRICT row[R];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) row[r] = p.rows[r] + offset;
#pragma GCC unroll 4
      for (int64_t k = 0; k < depth; ++k) {
        V b[N];
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) b[c] = hn::LoadU(d, w + c * lanes);
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) __builtin_prefetch(w + c * lanes + ahead, 0, 2);
        w += N * lanes;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const V a = hn::Set(d, row[r][k]);
#pragma GCC unroll 4
          for (int c = 0; c < N; ++c) acc[r][c] = hn::MulAdd(a, b[c], acc[r][c]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* out = p.out[r] + i * p.out_next;
#pragma GCC unroll 4
      for (int c = 0; c < N - 1; ++c) hn::StoreU(acc[r][c], d, out + c * lanes);
      if (whole) {
        hn::StoreU(acc[r][N - 1], d, out + (N - 1) * lanes);
      } else {
        hn::BlendedStore(acc[r][N - 1], tail, d, out + (N - 1) * lanes);
      }
    }
  }
}

template <int R, int N = 1>
HWY_ATTR void AnyProduct(const BlockProduct& p) {
  if constexpr (N <= kVectors && R <= kRows[N - 1]) {
    if (p.columns <= N * static_cast<int>(hn::Lanes(D()))) return Product<R, N>(p);
    if constexpr (N < kVectors) AnyProduct<R, N + 1>(p);
  }
}

HWY_ATTR const BlockOps& GetBlockOps() {
  static const BlockOps ops = {
      static_cast<int>(hn::Lanes(D())),
      kVectors,
      {kRows[0], kRows[1], kRows[2], kRows[3]},
      {AnyProduct<1>, AnyProduct<2>, AnyProduct<3>, AnyProduct<4>, AnyProduct<5>, AnyProduct<6>,
       AnyProduct<7>, AnyProduct<8>, AnyProduct<9>, AnyProduct<10>, AnyProduct<11>, AnyProduct<12>},
      hwy::TargetName(HWY_TARGET)};
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace upweave::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {
HWY_EXPORT(GetBlockOps);
const BlockOps& block_ops() { return HWY_DYNAMIC_DISPATCH(GetBlockOps)(); }
}  // namespace upweave::cpu
#endif
