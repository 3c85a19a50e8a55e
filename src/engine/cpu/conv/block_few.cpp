// Block products for convolutions whose output channels would not fill a vector: few of them, or each reading
// one input channel alone.
#include "engine/cpu/conv/block.h"
#include "engine/cpu/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/conv/block_few.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/cpu/conv/sum_four-inl.h"

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Loads feed these products, one or more for every two multiply-adds: 12 accumulators or 24, and what a
// vector of weights and of inputs takes.
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
constexpr int kDotRows[kPanelVectors] = {12, 6, 4, 3}, kOwnVectors = 2, kOwnRows[kPanelVectors] = {12, 6};
#else
constexpr int kDotRows[kPanelVectors] = {12, 12, 8, 6}, kOwnVectors = 4,
              kOwnRows[kPanelVectors] = {12, 12, 8, 6};
#endif

template <int R, int N>
HWY_ATTR void Dots(const BlockProduct& p) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), depth = p.depth;
  constexpr int kSums = (R * N + 3) / 4 * 4;
  V acc[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) acc[i] = hn::Zero(d);
  const float* HWY_RESTRICT w = p.weights;
  for (int64_t s = 0; s < p.segments; ++s) {
    w += p.skips[s];
    const float* HWY_RESTRICT row[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) row[r] = p.rows[r] + p.offsets[s];
    for (int64_t k = 0; k < depth; k += lanes) {
      V b[N];
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) b[c] = hn::LoadU(d, w + c * depth + k);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const V a = hn::LoadU(d, row[r] + k);
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) acc[r * N + c] = hn::MulAdd(a, b[c], acc[r * N + c]);
      }
    }
    w += N * depth;
  }
  float sums[kSums];
#pragma GCC unroll 6
  for (int i = 0; i < kSums; i += 4) sum_four::SumFour<false>(acc + i, sums + i);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) p.out[r][c] = sums[r * N + c];
  }
}

template <int R, int N = 1>
HWY_ATTR void AnyDots(const BlockProduct& p) {
  if constexpr (R <= kDotRows[N - 1]) {
    if (p.columns == N) return Dots<R, N>(p);
    if constexpr (N < kPanelVectors) AnyDots<R, N + 1>(p);
  }
}

template <int R, int N>
HWY_ATTR void Own(const BlockProduct& p) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto tail = hn::FirstN(d, static_cast<size_t>(p.columns - (N - 1) * lanes));
  V acc[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) acc[r][c] = hn::Zero(d);
  }
  const float* HWY_RESTRICT w = p.weights;
  for (int64_t s = 0; s < p.segments; ++s) {
    w += p.skips[s];
    const int64_t offset = p.offsets[s];
    V b[N];
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) b[c] = hn::LoadU(d, w + c * lanes);
    w += N * lanes;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float* HWY_RESTRICT row = p.rows[r] + offset;
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) acc[r][c] = hn::MulAdd(hn::LoadU(d, row + c * lanes), b[c], acc[r][c]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N - 1; ++c) hn::StoreU(acc[r][c], d, p.out[r] + c * lanes);
    hn::BlendedStore(acc[r][N - 1], tail, d, p.out[r] + (N - 1) * lanes);
  }
}

template <int R, int N = 1>
HWY_ATTR void AnyOwn(const BlockProduct& p) {
  if constexpr (N <= kOwnVectors && R <= kOwnRows[N - 1]) {
    if (p.columns <= N * static_cast<int>(hn::Lanes(D()))) return Own<R, N>(p);
    if constexpr (N < kOwnVectors) AnyOwn<R, N + 1>(p);
  }
}

HWY_ATTR const BlockOps& GetDotOps() {
  static const BlockOps ops = {1,
                               kPanelVectors,
                               {kDotRows[0], kDotRows[1], kDotRows[2], kDotRows[3]},
                               {AnyDots<1>, AnyDots<2>, AnyDots<3>, AnyDots<4>, AnyDots<5>, AnyDots<6>,
                                AnyDots<7>, AnyDots<8>, AnyDots<9>, AnyDots<10>, AnyDots<11>, AnyDots<12>},
                               hwy::TargetName(HWY_TARGET)};
  return ops;
}

HWY_ATTR const BlockOps& GetOwnOps() {
  static const BlockOps ops = {static_cast<int>(hn::Lanes(D())),
                               kOwnVectors,
                               {kOwnRows[0], kOwnRows[1], kOwnRows[2], kOwnRows[3]},
                               {AnyOwn<1>, AnyOwn<2>, AnyOwn<3>, AnyOwn<4>, AnyOwn<5>, AnyOwn<6>, AnyOwn<7>,
                                AnyOwn<8>, AnyOwn<9>, AnyOwn<10>, AnyOwn<11>, AnyOwn<12>},
                               hwy::TargetName(HWY_TARGET)};
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace upweave::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {
HWY_EXPORT(GetDotOps);
HWY_EXPORT(GetOwnOps);
const BlockOps& dot_block_ops() { return HWY_DYNAMIC_DISPATCH(GetDotOps)(); }
const BlockOps& depthwise_block_ops() { return HWY_DYNAMIC_DISPATCH(GetOwnOps)(); }
}  // namespace upweave::cpu
#endif
