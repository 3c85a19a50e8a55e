#include <cmath>

#include "engine/cpu/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/cpu/kernels/pointwise.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "engine/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace upweave::cpu::HWY_NAMESPACE {

// An operand along one row: the elements themselves, or one value for all of them.
struct RowOperand {
  const float* p;
  bool broadcast;
  RowOperand(const View& v, int64_t r) : p(v.p + r * v.row), broadcast(v.col == 0) {}
  HWY_INLINE VF operator()(int64_t c) const { return broadcast ? Splat(*p) : hn::LoadU(DF(), p + c); }
};

template <class F>
HWY_INLINE void Map1(const View& x, float* out, int64_t ld, int64_t rows, int64_t cols, F f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (int64_t r = 0; r < rows; ++r) {
    const RowOperand xr(x, r);
    for (int64_t c = 0; c < cols; c += lanes) hn::StoreU(f(xr(c)), DF(), out + r * ld + c);
  }
}

template <class F>
HWY_INLINE void Map2(const View& x, const View& y, float* out, int64_t ld, int64_t rows, int64_t cols, F f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (int64_t r = 0; r < rows; ++r) {
    const RowOperand xr(x, r), yr(y, r);
    for (int64_t c = 0; c < cols; c += lanes) hn::StoreU(f(xr(c), yr(c)), DF(), out + r * ld + c);
  }
}

// A product with the reciprocal is 1.5 ulp from the quotient as long as neither leaves the normal numbers.
HWY_INLINE MF Ordinary(VF divisor) {
  const VF size = hn::Abs(divisor);
  return hn::And(hn::Gt(size, Splat(0x1p-60f)), hn::Lt(size, Splat(0x1p60f)));
}

// Rows divided by one value each, and multiplied by another.
HWY_INLINE void ScaleRows(const View& x, const View& y, const View& z, float* out, int64_t ld, int64_t rows,
                          int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const View xr{x.p + r * x.row, 0, x.col};
    const VF v = Splat(y.p[r * y.row]), w = Splat(z.p[r * z.row]), factor = hn::Div(w, v);
    if (hn::AllTrue(DF(), hn::And(Ordinary(v), Ordinary(factor)))) {
      Map1(xr, out + r * ld, ld, 1, cols, [&](VF a) HWY_ATTR { return hn::Mul(a, factor); });
    } else {
      Map1(xr, out + r * ld, ld, 1, cols, [&](VF a) HWY_ATTR { return hn::Mul(hn::Div(a, v), w); });
    }
  }
}

// N vectors of columns divided by one value each, and multiplied by another.
template <int N>
HWY_INLINE void ScaleColumns(const View& x, const View& y, const View& z, float* out, int64_t ld,
                             int64_t rows, int64_t c) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VF v[N], w[N], factor[N];
  MF ordinary[N];
  bool all = true;
  for (int i = 0; i < N; ++i) {
    v[i] = hn::LoadU(d, y.p + c + i * lanes);
    w[i] = z.col ? hn::LoadU(d, z.p + c + i * lanes) : Splat(*z.p);
    factor[i] = hn::Div(w[i], v[i]);
    ordinary[i] = hn::And(Ordinary(v[i]), Ordinary(factor[i]));
    all = all && hn::AllTrue(d, ordinary[i]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int i = 0; i < N; ++i) {
      const VF a = hn::LoadU(d, x.p + r * x.row + c + i * lanes), product = hn::Mul(a, factor[i]);
      // Each lane for itself: behind the last channel lies anything.
      hn::StoreU(all ? product : hn::IfThenElse(ordinary[i], product, hn::Mul(hn::Div(a, v[i]), w[i])), d,
                 out + r * ld + c + i * lanes);
    }
  }
}

constexpr float kOne = 1;

// e^x - 1 for x <= 0: 2^n (e^r - 1) + (2^n - 1) with |r| <= ln(2)/2, where 2^n - 1 is exact or rounds to -1.
// 1.5 ulp.
HWY_INLINE VF Expm1Below(VF x) {
  const VF at_least = AtLeast(Splat(-30.0f), x);  // -1 to float32 from -18 on
  const VF n = hn::Round(hn::Mul(at_least, Splat(1.44269504f)));
  const VF r = hn::NegMulAdd(n, Splat(-2.12194440e-4f), hn::NegMulAdd(n, Splat(0.693359375f), at_least));
  const VF p = Poly(r, 5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f, 8.3334519073e-3f,
                    1.3981999507e-3f, 1.9875691500e-4f);
  const VF power = Scale(Splat(1.0f), n);
  return hn::MulAdd(power, hn::MulAdd(hn::Mul(r, r), p, r), hn::Sub(power, Splat(1.0f)));
}

HWY_INLINE VF Elu(VF x, VF alpha) {
  const VF zero = hn::Zero(DF());
  return hn::IfThenElse(hn::Gt(x, zero), x, hn::Mul(alpha, Expm1Below(AtMost(zero, x))));
}

// log(1 + e^t) = max(t, 0) + log(1 + z), z = e^-|t|, and log(1 + z) = 2 atanh(s) with s = z / (2 + z) <= 1/3.
// 4 ulp, without what beta t loses.
HWY_INLINE VF Softplus(VF x, VF beta, VF threshold) {
  const VF t = hn::Mul(x, beta), z = Exp(hn::Neg(hn::Abs(t)));
  const VF s = hn::Div(z, hn::Add(z, Splat(2.0f))), s2 = hn::Mul(s, s);
  const VF atanh =
      hn::Mul(s, Poly(s2, 1.0f, 1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9, 1.0f / 11, 1.0f / 13, 1.0f / 15));
  const VF y = hn::Div(hn::Add(AtLeast(hn::Zero(DF()), t), hn::Add(atanh, atanh)), beta);
  return hn::IfThenElse(hn::Gt(t, threshold), x, y);
}

// (-1)^n sin(r), r = x - n pi in [-pi/2, pi/2]: pi in three parts, of which the first product and difference
// are exact with fused multiply-adds as long as n has 12 bits. Larger x, and those of machines without such
// instructions, one by one: each lane for itself, whatever the others hold. 2 ulp.
HWY_INLINE VF Sin(VF x) {
  const DF d;
  constexpr float kLimit = HWY_NATIVE_FMA ? 8192.0f : 1.57f;
  const VF n = hn::Round(hn::Mul(x, Splat(0.318309886f)));
  VF r = hn::NegMulAdd(n, Splat(3.14159274f), x);
  r = hn::NegMulAdd(n, Splat(-8.74227766e-8f), r);
  r = hn::NegMulAdd(n, Splat(-3.43024902e-15f), r);
  const VF r2 = hn::Mul(r, r);
  const VF p = Poly(r2, -1.66666667e-1f, 8.33333333e-3f, -1.98412698e-4f, 2.75573192e-6f, -2.50521084e-8f,
                    1.60590438e-10f);
  const hn::RebindToSigned<DF> di;
  const VF sign = hn::BitCast(d, hn::ShiftLeft<31>(hn::ConvertTo(di, n)));
  const VF y = hn::Xor(hn::MulAdd(hn::Mul(r2, r), p, r), sign);
  if (HWY_LIKELY(hn::AllTrue(d, hn::Le(hn::Abs(x), Splat(kLimit))))) return y;
  HWY_ALIGN float from[16], to[16];
  hn::Store(x, d, from);
  hn::Store(y, d, to);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {  // NaN is beyond the limit too
    if (!(std::fabs(from[i]) <= kLimit)) to[i] = static_cast<float>(std::sin(static_cast<double>(from[i])));
  }
  return hn::Load(d, to);
}

void DivideMultiply(const View& x, const View& y, const View& z, float* out, int64_t ld, int64_t rows,
                    int64_t cols) {
  if (y.col == 0) return ScaleRows(x, y, z, out, ld, rows, cols);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t c = 0;
  for (; c + 4 * lanes <= cols; c += 4 * lanes) ScaleColumns<4>(x, y, z, out, ld, rows, c);
  for (; c + 2 * lanes <= cols; c += 2 * lanes) ScaleColumns<2>(x, y, z, out, ld, rows, c);
  for (; c < cols; c += lanes) ScaleColumns<1>(x, y, z, out, ld, rows, c);
}

// The vector form of each function: v is x, w is y.
bool Pointwise(Fn fn, float a, float b, const View& x, const View& y, float* out, int64_t ld, int64_t rows,
               int64_t cols) {
  const VF va = Splat(a), vb = Splat(b);
  const VF zero = hn::Zero(DF());
#define UPWEAVE_MAP1(expression)                                           \
  Map1(x, out, ld, rows, cols, [&](VF v) HWY_ATTR { return expression; }); \
  return true
#define UPWEAVE_MAP2(expression)                                                    \
  Map2(x, y, out, ld, rows, cols, [&](VF v, VF w) HWY_ATTR { return expression; }); \
  return true
  switch (fn) {
    case Fn::kCopy:
      UPWEAVE_MAP1(v);
    case Fn::kSign:
      UPWEAVE_MAP1(hn::IfThenElse(hn::Lt(v, zero), Splat(-1.0f), Splat(1.0f)));
    case Fn::kRelu:
      UPWEAVE_MAP1(AtLeast(zero, v));
    case Fn::kLeakyRelu:
      UPWEAVE_MAP1(hn::IfThenElse(hn::Lt(v, zero), hn::Mul(v, va), v));
    case Fn::kClamp:
      UPWEAVE_MAP1(Clamp(v, va, vb));
    case Fn::kExp:
      UPWEAVE_MAP1(Exp(v));
    case Fn::kExpBelow:
      UPWEAVE_MAP1(ExpBelow(v, va, vb));
    case Fn::kTanh:
      UPWEAVE_MAP1(Tanh(v));
    case Fn::kSigmoid:
      UPWEAVE_MAP1(Sigmoid(v));
    case Fn::kSwish:
      UPWEAVE_MAP1(Swish(v));
    case Fn::kMish:
      UPWEAVE_MAP1(Mish(v));
    case Fn::kHardswish:
      UPWEAVE_MAP1(Hardswish(v));
    case Fn::kGelu:
      UPWEAVE_MAP1(Gelu(v));
    case Fn::kGeluTanh:
      UPWEAVE_MAP1(GeluTanh(v));
    case Fn::kElu:
      UPWEAVE_MAP1(Elu(v, va));
    case Fn::kSoftplus:
      UPWEAVE_MAP1(Softplus(v, va, vb));
    case Fn::kSin:
      UPWEAVE_MAP1(Sin(v));
    case Fn::kAbs:
      UPWEAVE_MAP1(hn::Abs(v));
    case Fn::kSqrt:
      UPWEAVE_MAP1(hn::Sqrt(v));
    case Fn::kPrelu:
      UPWEAVE_MAP2(hn::IfThenElse(hn::Gt(v, zero), v, hn::Mul(v, w)));
    case Fn::kAdd:
      UPWEAVE_MAP2(hn::Add(v, w));
    case Fn::kSub:
      UPWEAVE_MAP2(hn::Sub(v, w));
    case Fn::kMul:
      UPWEAVE_MAP2(hn::Mul(v, w));
    case Fn::kDiv:
      if (x.col == 1 && (y.col == 0 || (y.row == 0 && rows > 1))) {
        DivideMultiply(x, y, {&kOne, 0, 0}, out, ld, rows, cols);
        return true;
      }
      UPWEAVE_MAP2(hn::Div(v, w));
    case Fn::kMinimum:
      UPWEAVE_MAP2(MinNan(v, w));
    case Fn::kMaximum:
      UPWEAVE_MAP2(MaxNan(v, w));
    default:
      return false;
  }
#undef UPWEAVE_MAP1
#undef UPWEAVE_MAP2
}

void Affine(const View& x, const View& center, const View& scale, const View& shift, float* out, int64_t ld,
            int64_t rows, int64_t cols) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (int64_t r = 0; r < rows; ++r) {
    const RowOperand xr(x, r), cr(center, r), sr(scale, r), hr(shift, r);
    for (int64_t c = 0; c < cols; c += lanes) {
      hn::StoreU(hn::MulAdd(hn::Sub(xr(c), cr(c)), sr(c), hr(c)), DF(), out + r * ld + c);
    }
  }
}

}  // namespace upweave::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace upweave::cpu {

HWY_EXPORT(Pointwise);
HWY_EXPORT(Affine);
HWY_EXPORT(DivideMultiply);

bool pointwise(Fn fn, float a, float b, const View& x, const View& y, float* out, int64_t ld, int64_t rows,
               int64_t cols) {
  return HWY_DYNAMIC_DISPATCH(Pointwise)(fn, a, b, x, y, out, ld, rows, cols);
}

void affine(const View& x, const View& center, const View& scale, const View& shift, float* out, int64_t ld,
            int64_t rows, int64_t cols) {
  HWY_DYNAMIC_DISPATCH(Affine)(x, center, scale, shift, out, ld, rows, cols);
}

void scale(const View& x, const View& y, const View& z, float* out, int64_t ld, int64_t rows, int64_t cols) {
  HWY_DYNAMIC_DISPATCH(DivideMultiply)(x, y, z, out, ld, rows, cols);
}

}  // namespace upweave::cpu
#endif
