R"cuda(
// The road that every graph can take: a kernel for each value that must be in memory, whatever precedes it inlined as
// a function of the coordinates. Sums are float64 and in a fixed order.

template <class T, class S, class F> DEVICE void elementwise(u8* out, F f) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < S::count; i += step) store<T>(out, i, f(S::at(i)));
}

// One thread a voxel; f reads channel c there, put writes.
template <class S, class Body> DEVICE void per_voxel(Body body) {
  constexpr i64 voxels = (i64)S::n[2] * S::n[3] * S::n[4], total = S::n[0] * voxels;
  const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= total) return;
  At at = Dims<S::n[0], 1, S::n[2], S::n[3], S::n[4]>::at(i);
  body(at);
}

template <class S, class F> DEVICE double channel_sum(At at, F f) {
  double sum = 0;
  for (int c = 0; c < S::n[1]; ++c) { at.x[1] = c; sum += f(at); }
  return sum;
}
// Where voxels are few: a block has 32 of them, each of its eight warps every eighth channel.
template <class S, class F, class Put> DEVICE void few_channel_sums(F f, Put put) {
  constexpr int total = S::n[0] * S::n[2] * S::n[3] * S::n[4];
  __shared__ double part[8][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.x * 32 + lane;
  At at = Dims<S::n[0], 1, S::n[2], S::n[3], S::n[4]>::at(min(i, total - 1));
  double sum = 0;
#pragma unroll 4
  for (int c = warp; c < S::n[1]; c += 8) { at.x[1] = c; sum += f(at); }
  part[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || i >= total) return;
  for (int w = 1; w < 8; ++w) sum += part[w][lane];
  at.x[1] = 0;
  put(at, sum);
}
template <class S, class F> DEVICE float channel_max(At at, F f) {
  float m = -kInf;
  for (int c = 0; c < S::n[1]; ++c) { at.x[1] = c; m = max_nan(m, f(at)); }
  return m;
}
template <class S, class F> DEVICE float channel_min(At at, F f) {
  float m = kInf;
  for (int c = 0; c < S::n[1]; ++c) { at.x[1] = c; m = min_nan(m, f(at)); }
  return m;
}

struct Sum { typedef double T; static DEVICE T zero() { return 0; } static DEVICE T combine(T a, T b) { return a + b; } };
struct Max { typedef float T; static DEVICE T zero() { return -kInf; } static DEVICE T combine(T a, T b) { return max_nan(a, b); } };
struct Min { typedef float T; static DEVICE T zero() { return kInf; } static DEVICE T combine(T a, T b) { return min_nan(a, b); } };

// The whole block's combination of what each thread holds, the same tree every time; every thread gets it.
template <class Op> DEVICE typename Op::T block_combine(typename Op::T v) {
  __shared__ typename Op::T part[32];
  for (int d = 16; d; d >>= 1) v = Op::combine(v, __shfl_xor_sync(~0u, v, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : Op::zero();
  for (int d = 16; d; d >>= 1) v = Op::combine(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

// A block combines f over the elements i = 0 .. n-1 of one set.
template <class Op, class F> DEVICE typename Op::T block_reduce(i64 n, F f) {
  typename Op::T v = Op::zero();
  // Four at a time, so that their loads are under way together.
  for (i64 i = threadIdx.x; i < n; i += 4 * blockDim.x) {
    typename Op::T x[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) x[u] = i + u * blockDim.x < n ? (typename Op::T)f(i + u * blockDim.x) : Op::zero();
#pragma unroll
    for (int u = 0; u < 4; ++u) v = Op::combine(v, x[u]);
  }
  return block_combine<Op>(v);
}

// Mean and biased variance of the values v[k] with there(k) of all threads. Within a warp float32 sums of differences from
// one of its values, which neither cancel nor grow with the mean; across warps float64. There are `total` numbers; FULL of a
// thread's v[k] are there, or none, and at most one more.
template <int FULL, int N, int W, class P>
DEVICE void block_moments(const float (&v)[N][W], P there, double total, float& mean, float& variance) {
  __shared__ double part[2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float pivot = __shfl_sync(~0u, v[0][0], 0);
  float s = 0.f, q = 0.f;
  int count = FULL * __popc(__ballot_sync(~0u, there(0)));
  if (FULL < N) count += __popc(__ballot_sync(~0u, there(N - 1)));
#pragma unroll
  for (int k = 0; k < N * W; ++k) s += there(k / W) ? v[k / W][k % W] - pivot : 0.f;
#pragma unroll
  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  if (lane == 0) part[0][warp] = (double)pivot * (count * W) + s;
  __syncthreads();
  const bool exists = lane < (int)blockDim.x / 32;
  double sum = exists ? part[0][lane] : 0;
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  mean = (float)(sum * (1. / total));
#pragma unroll
  for (int k = 0; k < N * W; ++k) {
    const float e = there(k / W) ? v[k / W][k % W] - mean : 0.f;
    q = fmaf(e, e, q);
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) q += __shfl_xor_sync(~0u, q, d);
  if (lane == 0) part[1][warp] = q;
  __syncthreads();
  double squares = exists ? part[1][lane] : 0;
  for (int d = 16; d; d >>= 1) squares += __shfl_xor_sync(~0u, squares, d);
  variance = (float)(squares * (1. / total));
}

// log sum exp x = m + log sum exp(x - m); an infinite m counts as 0, as in PyTorch.
template <class F> DEVICE float block_logsumexp(i64 n, F f) {
  float m = block_reduce<Max>(n, f);
  if (isinf(m)) m = 0.f;
  const double s = block_reduce<Sum>(n, [&](i64 i) { return (double)expf(f(i) - m); });
  return (float)((double)m + log(s));
}
)cuda"
