// The sums of four vectors' lanes, each in the same order. Included once for each instruction set.
#if defined(UPWEAVE_SUM_FOUR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef UPWEAVE_SUM_FOUR_INL_H
#undef UPWEAVE_SUM_FOUR_INL_H
#else
#define UPWEAVE_SUM_FOUR_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu {
namespace HWY_NAMESPACE {
namespace sum_four {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

#if HWY_TARGET != HWY_SCALAR
template <class DV>
HWY_INLINE hn::Vec<hn::Full128<float>> AddBlocks(DV d, hn::Vec<DV> v) {
  if constexpr (hn::MaxLanes(DV()) == 4) {
    return v;
  } else {
    const hn::Half<DV> half;
    return AddBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
// Without a sign, if they are sums of magnitudes, even where they are not numbers.
template <bool Magnitudes>
HWY_INLINE void SumFour(const V* v, float* sums) {
  const D d;
  const V even = hn::Add(hn::InterleaveLower(d, v[0], v[2]), hn::InterleaveUpper(d, v[0], v[2]));
  const V odd = hn::Add(hn::InterleaveLower(d, v[1], v[3]), hn::InterleaveUpper(d, v[1], v[3]));
  const V blocks = hn::Add(hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd));
  const auto sum = AddBlocks(d, blocks);
  hn::StoreU(Magnitudes ? hn::Abs(sum) : sum, hn::Full128<float>(), sums);
}
#else
template <bool Magnitudes>
HWY_INLINE void SumFour(const V* v, float* sums) {
  for (int k = 0; k < 4; ++k) hn::StoreU(Magnitudes ? hn::Abs(v[k]) : v[k], D(), sums + k);
}
#endif

}  // namespace sum_four
}  // namespace HWY_NAMESPACE
}  // namespace upweave::cpu
HWY_AFTER_NAMESPACE();

#endif
