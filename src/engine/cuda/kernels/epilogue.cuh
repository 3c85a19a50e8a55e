R"cuda(
// What generated epilogues call.
DEVICE float add2(float a, float b) { return a + b; }

// All phases of one channel, side by side in memory.
template <class T, int PH, int N> DEVICE void store_row(u8* to, i64 at, const float (&y)[PH][N], int i) {
  if constexpr (PH == 2 && sizeof(T) == 4) {
    __stcs((float2*)((float*)to + at), make_float2(y[0][i], y[1][i]));
  } else if constexpr (PH == 4 && sizeof(T) == 4) {
    __stcs((float4*)((float*)to + at), make_float4(y[0][i], y[1][i], y[2][i], y[3][i]));
  } else if constexpr (PH == 2) {
    T p, q;
    from_float(y[0][i], p);
    from_float(y[1][i], q);
    __stcs((u32*)((T*)to + at), (u32)p.bits | (u32)q.bits << 16);
  } else {
#pragma unroll
    for (int ph = 0; ph < PH; ++ph) store<T>(to, at + ph, y[ph][i]);
  }
}

// Partial results (k, p, q) of one column and how two of them become one.
struct JoinSum { static DEVICE void join(float&, float& p, float&, float, float p2, float) { p += p2; } };
struct JoinMax { static DEVICE void join(float&, float& p, float&, float, float p2, float) { p = max_nan(p, p2); } };
struct JoinMin { static DEVICE void join(float&, float& p, float&, float, float p2, float) { p = min_nan(p, p2); } };
struct JoinMoments {  // count, mean, summed squared differences (Chan, Golub and LeVeque 1979)
  static DEVICE void join(float& k, float& p, float& q, float k2, float p2, float q2) {
    const float total = k + k2;
    if (total == 0.f) return;
    const float d = p2 - p, share = k2 / total;
    p = fmaf(d, share, p);
    q += q2 + d * d * k * share;
    k = total;
  }
};
struct JoinExp {  // largest, sum of exp(x - largest)
  static DEVICE void join(float&, float& p, float& q, float, float p2, float q2) {
    const float m = max_nan(p, p2);
    q = (q == 0.f ? 0.f : q * f_exp(p - m)) + (q2 == 0.f ? 0.f : q2 * f_exp(p2 - m));
    p = m;
  }
};

// The block's partial results: over the eight rows of lanes, then over the warps in order.
template <class G, class J>
DEVICE void flush(const float (&p)[G::kN / 4], const float (&q)[G::kN / 4], float k, float* scratch, float* out) {
  constexpr int warps = G::kThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < G::kN / 4; ++i) {
    float a = k, b = p[i], c = q[i];
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) {
      const float a2 = __shfl_xor_sync(~0u, a, d), b2 = __shfl_xor_sync(~0u, b, d), c2 = __shfl_xor_sync(~0u, c, d);
      // The lane with the smaller index goes first in both, so that they agree to the bit.
      if (lane & d) {
        float x = a2, y = b2, z = c2;
        J::join(x, y, z, a, b, c);
        a = x; b = y; c = z;
      } else {
        J::join(a, b, c, a2, b2, c2);
      }
    }
    if (lane < 4) {
      float* s = scratch + (warp * G::kN + 8 * (i / 2) + 2 * lane + i % 2) * 3;
      s[0] = a; s[1] = b; s[2] = c;
    }
  }
  __syncthreads();
  for (int column = threadIdx.x; column < G::kN; column += G::kThreads) {
    float a = scratch[column * 3], b = scratch[column * 3 + 1], c = scratch[column * 3 + 2];
    for (int w = 1; w < warps; ++w) {
      const float* s = scratch + (w * G::kN + column) * 3;
      J::join(a, b, c, s[0], s[1], s[2]);
    }
    out[column * 3] = a; out[column * 3 + 1] = b; out[column * 3 + 2] = c;
  }
  __syncthreads();
}
)cuda"
