R"cuda(
// What generated epilogues call.
DEVICE float add2(float a, float b) { return a + b; }

// All phases of one channel, side by side in memory.
template <class T, int PH> DEVICE void store_row(u8* to, i64 at, const float (&y)[PH]) {
  if constexpr (PH == 2 && sizeof(T) == 4) {
    __stcs((float2*)((float*)to + at), make_float2(y[0], y[1]));
  } else if constexpr (PH == 4 && sizeof(T) == 4) {
    __stcs((float4*)((float*)to + at), make_float4(y[0], y[1], y[2], y[3]));
  } else {
    T p[PH];
#pragma unroll
    for (int ph = 0; ph < PH; ++ph) from_float(y[ph], p[ph]);
    if constexpr (PH == 2) __stcs((u32*)((T*)to + at), (u32)p[0].bits | (u32)p[1].bits << 16);
    else __stcs((uint2*)((T*)to + at), make_uint2((u32)p[0].bits | (u32)p[1].bits << 16, (u32)p[2].bits | (u32)p[3].bits << 16));
  }
}

// 16-bit values of two columns, of this lane's row and of the next or the one before, which is in lane ^ 4: both rows' of the
// first column for the lane with the even row, of the second for the other.
template <class T> DEVICE u32 pair_rows(float first, float second) {
  T p, q;
  from_float(first, p);
  from_float(second, q);
  const u32 mine = p.bits | (u32)q.bits << 16, other = __shfl_xor_sync(~0u, mine, 4);
  return __byte_perm(mine, other, threadIdx.x & 4 ? 0x3276 : 0x5410);
}

// Partial results (k, p, q) of one column and how two of them become one.
struct CombineSum { static DEVICE float none() { return 0.f; } static DEVICE void combine(float&, float& p, float&, float, float p2, float) { p += p2; }
  static DEVICE void step(float& p, float&, float p2, float, float, float) { p += p2; } };
struct CombineMax { static DEVICE float none() { return -kInf; } static DEVICE void combine(float&, float& p, float&, float, float p2, float) { p = max_nan(p, p2); }
  static DEVICE void step(float& p, float&, float p2, float, float, float) { p = max_nan(p, p2); } };
struct CombineMin { static DEVICE float none() { return kInf; } static DEVICE void combine(float&, float& p, float&, float, float p2, float) { p = min_nan(p, p2); }
  static DEVICE void step(float& p, float&, float p2, float, float, float) { p = min_nan(p, p2); } };
// `step` is combine for two partial results whose counts are known: share = k2 / (k + k2), weight = k share.
struct CombineMoments {  // count, mean, summed squared differences (Chan, Golub and LeVeque 1979)
  static DEVICE float none() { return 0.f; }
  static DEVICE void combine(float& k, float& p, float& q, float k2, float p2, float q2) {
    const float total = k + k2;
    if (total == 0.f) return;
    const float d = p2 - p, share = k2 / total;
    p = fmaf(d, share, p);
    q += q2 + d * d * k * share;
    k = total;
  }
  static DEVICE void step(float& p, float& q, float p2, float q2, float share, float weight) {
    const float d = p2 - p;
    p = fmaf(d, share, p);
    q = fmaf(d * d, weight, q + q2);
  }
};
struct CombineExp {  // largest, sum of exp(x - largest)
  static DEVICE float none() { return -kInf; }
  static DEVICE void combine(float&, float& p, float& q, float, float p2, float q2) {
    const float m = max_nan(p, p2);
    q = (q == 0.f ? 0.f : q * f_exp(p - m)) + (q2 == 0.f ? 0.f : q2 * f_exp(p2 - m));
    p = m;
  }
  static DEVICE void step(float& p, float& q, float p2, float q2, float, float) {
    float none;
    combine(none, p, q, 0.f, p2, q2);
  }
};

// Where the pooled values of 16 channels of a sample and line begin, if they are divided; see LineByLine::divide.
template <class G> DEVICE u8* divided_at(const Args& a, int n, int block, int line) {
  return own_line<G>(line) ? a.output + own_at<G>(n, block, line) : a.ws + rest_at<G>(n, block, line);
}

// A warpgroup's partial results: over the eight rows of lanes, then over its warps in order. `scratch` is the
// warpgroup's own.
DEVICE void warpgroup_sync() {
  asm volatile("bar.sync %0, 128;" ::"r"(8 + (int)threadIdx.x / 128) : "memory");
}
// Where this warpgroup's part of a tile goes.
template <class G> DEVICE float* partial(u8* at, int tile, int partition) {
  const int part = partition * (G::kThreads / 128) + threadIdx.x / 128;
  return (float*)at + (((i64)tile * (G::kPartitions * (G::kThreads / 128)) + part) * gridDim.y + blockIdx.y) * (G::kN * 3);
}
template <class G, class J> DEVICE void no_part(float* out) {
  for (int column = threadIdx.x % 128; column < G::kN; column += 128) {
    out[column * 3] = 0.f; out[column * 3 + 1] = J::none(); out[column * 3 + 2] = 0.f;
  }
}
// How counts combine over lanes d apart, for all columns at once.
struct Shares {
  float count, share, weight;
  DEVICE Shares next(int d) const {  // count: of both
    const float other = __shfl_xor_sync(~0u, count, d);
    return of(count, other);
  }
  static DEVICE Shares of(float count, float other) {
    const float total = count + other, share = total > 0.f ? other / total : 0.f;
    return {total, share, count * share};
  }
};

// The four warps' results of each column, in order; `more`: of what is there already, too.
template <class G, class J> DEVICE void combine_warps(const float* scratch, float* out, bool more = false) {
  warpgroup_sync();
  for (int column = threadIdx.x % 128; column < G::kN; column += 128) {
    float a = scratch[column * 3], b = scratch[column * 3 + 1], c = scratch[column * 3 + 2];
#pragma unroll
    for (int w = 1; w < 4; ++w) {
      const float* s = scratch + (w * G::kN + column) * 3;
      J::combine(a, b, c, s[0], s[1], s[2]);
    }
    if (more) J::combine(a, b, c, out[column * 3], out[column * 3 + 1], out[column * 3 + 2]);
    out[column * 3] = a; out[column * 3 + 1] = b; out[column * 3 + 2] = c;
  }
}
template <class G, class J>
DEVICE void flush(const float (&p)[G::kN / 4], const float (&q)[G::kN / 4], float k, float* scratch, float* out) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const Shares first = Shares{k, 0.f, 0.f}.next(4), second = first.next(8), third = second.next(16);
  warpgroup_sync();
#pragma unroll
  for (int i = 0; i < G::kN / 4; ++i) {
    float b = p[i], c = q[i];  // lanes 0 to 3 count: what they combine comes later in order
    J::step(b, c, __shfl_xor_sync(~0u, b, 4), __shfl_xor_sync(~0u, c, 4), first.share, first.weight);
    J::step(b, c, __shfl_xor_sync(~0u, b, 8), __shfl_xor_sync(~0u, c, 8), second.share, second.weight);
    J::step(b, c, __shfl_xor_sync(~0u, b, 16), __shfl_xor_sync(~0u, c, 16), third.share, third.weight);
    if (lane < 4) {
      float* s = scratch + (warp * G::kN + 8 * (i / 2) + 2 * lane + i % 2) * 3;
      s[0] = third.count; s[1] = b; s[2] = c;
    }
  }
  combine_warps<G, J>(scratch, out);
}

// Moments of the convolution's own sums. Of each eight columns that a lane holds it keeps one for itself and its seven
// neighbours in rows: they exchange halves, then quarters, then eighths. So the state is an eighth of the columns.
template <class G> struct OwnColumns {
  static constexpr int kColumns = G::kN / 4, kOwn = (kColumns + 7) / 8;
  float k, p[kOwn], q[kOwn];
  DEVICE void clear() {
    k = 0.f;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) p[b] = q[b] = 0.f;
  }
  // Column i of a lane's columns in the tile.
  static DEVICE int column(int i) { return 8 * (i / 2) + 2 * ((int)threadIdx.x % 4) + i % 2; }
  DEVICE void flush(float* scratch, float* out, bool more = false) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    warpgroup_sync();
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      const int i = 8 * b + lane / 4;
      if (i >= kColumns) continue;
      float* s = scratch + (warp * G::kN + column(i)) * 3;
      s[0] = k; s[1] = p[b]; s[2] = q[b];
    }
    combine_warps<G, CombineMoments>(scratch, out, more);
  }
};

template <class G> struct Moments : OwnColumns<G> {
  using OwnColumns<G>::kColumns, OwnColumns<G>::kOwn, OwnColumns<G>::k, OwnColumns<G>::p, OwnColumns<G>::q;
  // Mean and summed squares of column i and those that the neighbours 16, 8, ... lanes away give it: of two columns the
  // lane keeps one and hands the other over. Depth first, for registers are few.
  template <int LEVEL, int PH>
  static DEVICE void gather(float& m, float& s, int i, const float (&sum)[PH][G::kSums][G::kNr], const float (&weight)[PH][G::kSums][2],
                            float inverse, const Shares (&shares)[4]) {
    if constexpr (LEVEL == 0) {
      m = s = 0.f;
      if (i >= kColumns) return;
#pragma unroll
      for (int x = 0; x < PH * G::kSums * 2; ++x) m += sum[x / 2 / G::kSums][x / 2 % G::kSums][i / 2 * 4 + x % 2 * 2 + i % 2];
      m *= inverse;
#pragma unroll
      for (int x = 0; x < PH * G::kSums * 2; ++x) {
        const float e = sum[x / 2 / G::kSums][x / 2 % G::kSums][i / 2 * 4 + x % 2 * 2 + i % 2] - m;
        s = fmaf(e * weight[x / 2 / G::kSums][x / 2 % G::kSums][x % 2], e, s);
      }
    } else {
      const bool upper = threadIdx.x & (32 >> LEVEL);
      float m2, s2;
      gather<LEVEL - 1>(m, s, i, sum, weight, inverse, shares);
      gather<LEVEL - 1>(m2, s2, i + (8 >> LEVEL), sum, weight, inverse, shares);
      const float m3 = __shfl_xor_sync(~0u, upper ? m : m2, 32 >> LEVEL), s3 = __shfl_xor_sync(~0u, upper ? s : s2, 32 >> LEVEL);
      m = upper ? m2 : m;
      s = upper ? s2 : s;
      CombineMoments::step(m, s, m3, s3, shares[LEVEL].share, shares[LEVEL].weight);
    }
  }
  // weight: 1 where the row is an output, 0 where not; there the sums are zero.
  template <int PH> DEVICE void update(const float (&sum)[PH][G::kSums][G::kNr], const float (&weight)[PH][G::kSums][2]) {
    Shares shares[4] = {};
#pragma unroll
    for (int x = 0; x < PH * G::kSums * 2; ++x) shares[0].count += weight[x / 2 / G::kSums][x / 2 % G::kSums][x % 2];
    const float inverse = shares[0].count > 0.f ? 1.f / shares[0].count : 0.f;
#pragma unroll
    for (int level = 1; level < 4; ++level) shares[level] = shares[level - 1].next(32 >> level);
    const Shares all = Shares::of(k, shares[3].count);
    k = all.count;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      float m, s;
      gather<3>(m, s, 8 * b, sum, weight, inverse, shares);
      CombineMoments::step(p[b], q[b], m, s, all.share, all.weight);
    }
  }
};

// The same for blocks of many tiles, in fewer instructions: sums of differences from a pivot, which is the mean of all that
// the warp has seen (in the beginning, a value), so that nothing cancels. `scratch` holds the pivots until it is flushed.
template <class G> struct RunningMoments : OwnColumns<G> {
  using OwnColumns<G>::kColumns, OwnColumns<G>::kOwn, OwnColumns<G>::k, OwnColumns<G>::p, OwnColumns<G>::q, OwnColumns<G>::column;
  // The sum of column i's differences from its pivot, and that of their squares.
  static DEVICE void differences(float& s, float& t, int i, const float (&sum)[G::kSums][G::kNr], const bool (&real)[G::kSums][2], const float* pivot) {
    s = t = 0.f;
    if (i >= kColumns) return;
    const float about = pivot[column(i)];
#pragma unroll
    for (int x = 0; x < G::kSums * 2; ++x) {
      const float e = real[x / 2][x % 2] ? sum[x / 2][i / 2 * 4 + x % 2 * 2 + i % 2] - about : 0.f;
      s += e;
      t = fmaf(e, e, t);
    }
  }
  // What is kept of x and y and its neighbour's, d lanes away.
  static DEVICE void exchange(float& x, float y, int d) {
    const bool upper = threadIdx.x & d;
    const float other = __shfl_xor_sync(~0u, upper ? x : y, d);
    x = (upper ? y : x) + other;
  }
  DEVICE void update(const float (&sum)[G::kSums][G::kNr], const bool (&real)[G::kSums][2], float* scratch) {
    const int lane = threadIdx.x % 32;
    float* pivot = scratch + threadIdx.x / 32 % 4 * G::kN;
    int rows = 0;  // in four lanes each
#pragma unroll
    for (int x = 0; x < G::kSums * 2; ++x) rows += __popc(__ballot_sync(~0u, real[x / 2][x % 2]));
    if (rows == 0) return;
    if (k == 0.f && lane < 4) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) pivot[column(i)] = sum[0][i / 2 * 4 + i % 2];
    }
    __syncwarp();
    const float n = rows / 4, inverse = 1.f / n, share = n / (k + n), weight = k * share;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      // Of two columns the lane keeps one and hands the other over: halves, quarters, eighths.
      float s[4], t[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float s2, t2;
        differences(s[j], t[j], 8 * b + j, sum, real, pivot);
        differences(s2, t2, 8 * b + j + 4, sum, real, pivot);
        exchange(s[j], s2, 16);
        exchange(t[j], t2, 16);
      }
#pragma unroll
      for (int level = 2; level < 4; ++level) {
#pragma unroll
        for (int j = 0; j < 8 >> level; ++j) {
          exchange(s[j], s[j + (8 >> level)], 32 >> level);
          exchange(t[j], t[j + (8 >> level)], 32 >> level);
        }
      }
      const int own = min(8 * b + lane / 4, kColumns - 1);
      const float mean = s[0] * inverse, d = pivot[column(own)] + mean - p[b];
      p[b] = fmaf(d, share, p[b]);
      q[b] += fmaf(-s[0], mean, t[0]) + d * d * weight;
      __syncwarp();
      if (8 * b + lane / 4 < kColumns) pivot[column(own)] = p[b];
    }
    k += n;
    __syncwarp();
  }
};
)cuda"
