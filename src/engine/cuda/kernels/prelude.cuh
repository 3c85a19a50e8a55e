R"cuda(
// What every generated kernel starts from: element types, coordinates, the scalar functions of the vocabulary.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEVICE __device__ __forceinline__

// All kernels take the same four pointers; where a tensor lies behind them is a constant of the generated code.
struct Args {
  const u8* input;
  u8* output;
  u8* ws;
  u8* packed;
};

// A run's kernels are launched while the one before them ends (see CudaProgram::launch): what it wrote is there behind this,
// with which nearly every kernel starts.
DEVICE void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Blocks of the next one may begin wherever there is room, once all blocks have come here.
DEVICE void admit_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct F16 { u16 bits; };
struct BF16 { u16 bits; };

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(F16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE float to_float(BF16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE void from_float(float x, float& y) { y = x; }
DEVICE void from_float(float x, F16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void from_float(float x, BF16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

template <class T> DEVICE float load(const u8* p, i64 i) { return to_float(((const T*)p)[i]); }
template <class T> DEVICE void store(u8* p, i64 i, float x) { T y; from_float(x, y); ((T*)p)[i] = y; }

#define kInf __int_as_float(0x7f800000)

// A place in a tensor of up to five axes, and the extents of such a tensor.
struct At { int x[5]; };
template <int A, int B, int C, int D, int E> struct Dims {
  static constexpr int n[5] = {A, B, C, D, E};
  static constexpr i64 count = (i64)A * B * C * D * E;
  static DEVICE i64 offset(const At& i) {
    return ((((i64)i.x[0] * B + i.x[1]) * C + i.x[2]) * D + i.x[3]) * E + i.x[4];
  }
  static DEVICE At at(i64 i) { return count <= 0x7fffffffll ? split<u32>((u32)i) : split<i64>(i); }
  template <class I> static DEVICE At split(I i) {
    At r;
    r.x[4] = (int)(i % E); i /= E;
    r.x[3] = (int)(i % D); i /= D;
    r.x[2] = (int)(i % C); i /= C;
    r.x[1] = (int)(i % B);
    r.x[0] = (int)(i / B);
    return r;
  }
};

// NaN wins, as in PyTorch.
DEVICE float max_nan(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEVICE float min_nan(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }

DEVICE float f_relu(float x) { return x < 0.f ? 0.f : x; }
DEVICE float f_leaky_relu(float x, float slope) { return x < 0.f ? slope * x : x; }
#ifdef UPWEAVE_FAST
// 1 - 2/(1 + e^2x), and the series where that would cancel: within 4e-7 |tanh x|.
DEVICE float f_tanh(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * 2.88539008f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e + 1.f));
  const float s = x * x, series = x * fmaf(s, fmaf(s, fmaf(s, -0.0539682540f, 0.133333333f), -0.333333333f), 1.f);
  return fabsf(x) < 0.25f ? series : fmaf(-2.f, r, 1.f);
}
#else
DEVICE float f_tanh(float x) { return tanhf(x); }
#endif
DEVICE float f_exp(float x) { return expf(x); }
DEVICE float f_sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DEVICE float f_swish(float x) { return x * f_sigmoid(x); }
DEVICE float f_mish(float x) { return x * tanhf(x > 20.f ? x : log1pf(expf(x))); }
DEVICE float f_clamp(float x, float lo, float hi) { return min_nan(max_nan(x, lo), hi); }
DEVICE float f_hardswish(float x) { return x * f_clamp(x + 3.f, 0.f, 6.f) / 6.f; }
DEVICE float f_gelu_tanh(float x) {
  return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
DEVICE float f_gelu(float x) { return 0.5f * x * erfcf(-x * 0.70710678118654752f); }
// gelu(y) = u kh + |u| (kh - 2^(-u^2) P(|u|)) with u = y sqrt(log2(e)/2), kh = 1/2 / sqrt(log2(e)/2) and
// P(a) = Phi(-a sqrt(2/log2 e)) 2^(a^2) / sqrt(log2(e)/2), fitted: by a polynomial of degree 5 in 1/(1 + 0.37 a) |error| <= 1.3e-8 |y|,
// to which float32 adds two ulps; by one of degree 5 in a |error| <= 4e-5, where a is no more than 12, for the polynomial must not be infinite.
constexpr float kGeluScale = 0.84932180028801904f, kGeluHalf = 0.58870501125773734f;
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float gelu_tail(float u, float p) {
  return fmaf(fabsf(u), fmaf(-exp2_fast(-u * u), p, kGeluHalf), kGeluHalf * u);
}
template <int N> DEVICE float horner(const float (&c)[N], float a) {
  float p = c[0];
#pragma unroll
  for (int k = 1; k < N; ++k) p = fmaf(p, a, c[k]);
  return p;
}
DEVICE float f_reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// u = y kGeluScale is given; for the short one |u| < 12.
DEVICE float gelu_scaled(float u) {
  const float c[6] = {-1.607370167e-01f, 6.489161557e-01f, -4.113538339e-01f, 4.337905600e-01f, 6.923139207e-02f, 8.857741463e-03f};
  return gelu_tail(u, horner(c, f_reciprocal(fmaf(0.37f, fabsf(u), 1.f))));
}
DEVICE float gelu5(float u, float a) {
  const float c[6] = {-4.170960543e-03f, 3.891255689e-02f, -1.537073796e-01f, 3.507286573e-01f, -5.375824609e-01f,
                      5.873028698e-01f};
  return gelu_tail(u, horner(c, a));
}
DEVICE float f_gelu_exact(float y) { return gelu_scaled(y * kGeluScale); }
DEVICE float f_gelu_short(float y) { return gelu5(y * kGeluScale, fminf(fabsf(y * kGeluScale), 12.f)); }
DEVICE float gelu_scaled_short(float u) { return gelu5(u, fabsf(u)); }
// One Newton step on the hardware's guess: within an ulp. 0 and infinity keep the guess.
DEVICE float inv_sqrt(float x) {
  const float r = rsqrtf(x), e = fmaf(-0.5f * x * r, r, 0.5f);
  return fabsf(e) < 1.f ? fmaf(r, e, r) : r;
}
)cuda"
