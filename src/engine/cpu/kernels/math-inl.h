// Vector functions of float32, one copy an instruction set (include only between HWY_BEFORE_NAMESPACE and
// HWY_AFTER_NAMESPACE). Errors are the largest measured over all floats of the stated range, in units in the
// last place; tests/cpu_math_test.cpp measures them again. NaN gives NaN, infinities the limits.
#if defined(UPWEAVE_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef UPWEAVE_CPU_MATH_INL_H_
#undef UPWEAVE_CPU_MATH_INL_H_
#else
#define UPWEAVE_CPU_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;  // rows are padded to 16
using VF = hn::Vec<DF>;
using MF = hn::Mask<DF>;

HWY_INLINE VF Splat(float v) { return hn::Set(DF(), v); }

// c0 + c1 x + c2 x^2 ..., by Horner.
template <class... C>
HWY_INLINE VF Poly(VF x, float c0, C... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return Splat(c0);
  } else {
    return hn::MulAdd(x, Poly(x, rest...), Splat(c0));
  }
}

// Comparisons with NaN are false, and what Min and Max make of NaN differs between instruction sets; these
// two give NaN if either is NaN.
HWY_INLINE VF MaxNan(VF a, VF b) { return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a); }
HWY_INLINE VF MinNan(VF a, VF b) { return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a); }
// The larger and the smaller of a number and x; NaN if x is NaN, which x86's instructions give as they stand.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE VF AtLeast(VF lo, VF x) { return hn::Max(lo, x); }
HWY_INLINE VF AtMost(VF hi, VF x) { return hn::Min(hi, x); }
#else
HWY_INLINE VF AtLeast(VF lo, VF x) { return hn::IfThenElse(hn::Lt(x, lo), lo, x); }
HWY_INLINE VF AtMost(VF hi, VF x) { return hn::IfThenElse(hn::Gt(x, hi), hi, x); }
#endif
// NaN stays NaN; lo > hi gives hi.
HWY_INLINE VF Clamp(VF x, VF lo, VF hi) { return AtMost(hi, AtLeast(lo, x)); }

// y 2^n for integral n in [-151, 151], rounded once where it becomes subnormal, infinite where it overflows.
HWY_INLINE VF Scale(VF y, VF n) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return VF{_mm512_scalef_ps(y.raw, n.raw)};
#else  // in two halves: 2^n itself may be out of range
  const hn::RebindToSigned<DF> di;
  const auto i = hn::ConvertTo(di, n), half = hn::ShiftRight<1>(i), bias = hn::Set(di, 127);
  const VF a = hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(half, bias)));
  const VF b = hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(hn::Sub(i, half), bias)));
  return hn::Mul(hn::Mul(y, a), b);
#endif
}

// exp(x) for x in [-105, 90]: 2^n exp(r) with |r| <= ln(2)/2.
HWY_INLINE VF ExpCore(VF x) {
  const VF n = hn::Round(hn::Mul(x, Splat(1.44269504f)));
  const VF r = hn::NegMulAdd(n, Splat(-2.12194440e-4f), hn::NegMulAdd(n, Splat(0.693359375f), x));
  const VF p = Poly(r, 5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f, 8.3334519073e-3f,
                    1.3981999507e-3f, 1.9875691500e-4f);
  return Scale(hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), Splat(1.0f)), n);
}

// 1.5 ulp everywhere.
HWY_INLINE VF Exp(VF x) { return ExpCore(Clamp(x, Splat(-105.0f), Splat(90.0f))); }

// exp(clamp(x, lo, hi) - hi) for hi - lo <= 1, by its series around -1/2. 1.5 ulp of the shifted value's, 1.6
// where multiply-adds are not fused.
HWY_INLINE VF ExpBelow(VF x, VF lo, VF hi) {
  const VF t = hn::Add(hn::Sub(Clamp(x, lo, hi), hi), Splat(0.5f));
  return Poly(t, 0.6065306664f, 0.6065308452f, 0.3032648861f, 0.1010820791f, 0.02527618967f, 0.005106485914f,
              0.000835841638f);
}

// e^-|x| / (1 + e^-|x|) and its complement: no cancellation on either side. 3 ulp everywhere.
HWY_INLINE VF Sigmoid(VF x) {
  const VF e = Exp(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(DF())), e, Splat(1.0f)), hn::Add(e, Splat(1.0f)));
}

// Odd polynomial below 0.625 (Cephes), 1 - 2/(e^2t + 1) above. 2 ulp everywhere.
HWY_INLINE VF Tanh(VF x) {
  const VF t = hn::Abs(x);
  const VF x2 = hn::Mul(x, x);
  const VF p = Poly(x2, -3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f, 2.06390887954e-2f,
                    -5.70498872745e-3f);
  const VF small = hn::MulAdd(hn::Mul(x2, x), p, x);
  const VF clamped = AtMost(Splat(10.0f), t);  // tanh(10) rounds to 1
  const VF e = ExpCore(hn::Add(clamped, clamped));
  const VF large = hn::CopySign(hn::Sub(Splat(1.0f), hn::Div(Splat(2.0f), hn::Add(e, Splat(1.0f)))), x);
  return hn::IfThenElse(hn::Lt(t, Splat(0.625f)), small, large);
}

// 3 ulp, or |x| times the smallest subnormal.
HWY_INLINE VF Swish(VF x) { return hn::Mul(x, Sigmoid(x)); }

// tanh(log1p(e)) = n / (n + 2) with e = exp(x), n = e (e + 2); x itself from 20 on. 4 ulp, or |x| times the
// smallest subnormal.
HWY_INLINE VF Mish(VF x) {
  const VF e = Exp(AtMost(Splat(20.0f), x));
  const VF n = hn::Mul(e, hn::Add(e, Splat(2.0f)));
  const VF y = hn::Mul(x, hn::Div(n, hn::Add(n, Splat(2.0f))));
  return hn::IfThenElse(hn::Ge(x, Splat(20.0f)), x, y);
}

HWY_INLINE VF Hardswish(VF x) {
  const VF gate = Clamp(hn::Add(x, Splat(3.0f)), hn::Zero(DF()), Splat(6.0f));
  return hn::Mul(x, hn::Mul(gate, Splat(1.0f / 6.0f)));
}

// x Phi(x), Phi(-t) = 2^(-t^2 log2(e)/2) R(t): R a polynomial on [0, 5.5], off by 6e-8 of Phi at most;
// behind 5.5 the power decides, and below 2^-126 the result is 0. Within 2 ulp of the result plus 2^-23 |x|.
HWY_INLINE VF Gelu(VF x) {
  const VF t = hn::Abs(x);
  const VF w = hn::Max(hn::Mul(hn::Mul(t, t), Splat(-0.721347520444f)), Splat(-151.0f));
  const VF near = hn::Round(w);
  const VF power = Scale(Poly(hn::Sub(w, near), 1.0f, 6.931471825e-1f, 2.402264625e-1f, 5.550328642e-2f,
                              9.618489072e-3f, 1.339993090e-3f, 1.534581097e-4f),
                         near);
  const VF r = Poly(hn::Min(t, Splat(5.5f)), 4.999999106e-1f, -3.989352584e-1f, 2.499030828e-1f,
                    -1.324568093e-1f, 6.103637442e-2f, -2.417483740e-2f, 7.841818966e-3f, -1.933055697e-3f,
                    3.292353940e-4f, -3.376602763e-5f, 1.549126750e-6f);
  const VF q = hn::Mul(power, r);
  const VF phi = hn::IfThenElse(hn::Lt(x, hn::Zero(DF())), q, hn::Sub(Splat(1.0f), q));
  return hn::Mul(x, phi);
}

// 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE VF GeluTanh(VF x) {
  const VF x2 = hn::Mul(x, x);
  const VF z2 = hn::Mul(x, hn::MulAdd(x2, Splat(0.0713548162726f), Splat(1.59576912161f)));
  return hn::Mul(x, Sigmoid(z2));
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
