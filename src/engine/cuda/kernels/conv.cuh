R"cuda(
// The convolution: tiles of rows (windows) by columns (output channels), see convolution.h. The main loop knows nothing of
// what follows it: sums leave it in registers and meet the epilogue E, which is generated from the plan's nodes.
//
// Who holds what: a warpgroup computes subtiles of 64 rows; in a subtile, lane 4g + t of warp w holds rows 16w + g and
// 16w + g + 8, of every eight columns the two at 2t. So a row lies in four neighbouring lanes.

// What pre-passes leave for the products: scales as powers of two, and whether the data fits fp16 at all.
struct Scale {
  float up, down;    // x = fp16 * down, fp16 = x * up
  float lo;          // of split values: fp16 lo = (x * up - hi) * lo
  u32 other_path;    // some values are beyond scaled fp16, or not finite: products must be float32
  u32 again;         // the first guess of the scale was wrong: convert again
};

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// ---- Pre-pass: float32 N C ... -> fp16 rows, with what the choice of the scale needs -----------------------------
// A thread makes 16 bytes, 8 channels of one row, of each of the width's components, which read the same sectors. A warp has
// 32 / CHUNKS neighbouring rows, so that what it reads and what it writes are both whole sectors.
template <class G, int CHUNKS, class F> DEVICE void convert_rows(const Args& a, F value, bool first) {
  Scale* scale = (Scale*)(a.ws + G::kScale);
  if (!first && !scale->again) return;
  constexpr int chunks = G::kCk / 8, rows_per_block = 256 / chunks, planes = G::kBlocks * G::kComponents / G::kFw;
  constexpr int across = chunks / CHUNKS, rows = 32 / CHUNKS;  // warps of the same rows; rows of a warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = warp % across * CHUNKS + lane / rows;
  const int in_block = warp / across * rows + lane % rows;
  const float up = first ? (float)(1 << G::kGuess) : scale->up, lo_up = first ? (float)(1 << G::kLo) : scale->lo;
  // Residues of the same rows run together: what one reads, the others find in the cache.
  for (int part = blockIdx.x; part < G::kConvertBlocks; part += gridDim.x) {
  const int block = part % planes % G::kBlocks, component = part % planes / G::kBlocks * G::kFw;
  const i64 row = (i64)(part / planes) * rows_per_block + in_block - G::kGuard;
  float x[G::kFw][8];
#pragma unroll
  for (int i = 0; i < 8 * G::kFw; ++i) x[i / 8][i % 8] = 0.f;
  if (row >= 0 && row < G::kRows) {
    const int plane = (int)(row / G::kPlane), rest = (int)(row % G::kPlane), line = rest / G::kPitchW;
    const int bd = component / (G::kFh * G::kFw), bh = component / G::kFw % G::kFh;
    const int d = plane % G::kPitchD * G::kFd + bd, h = line * G::kFh + bh, w = rest % G::kPitchW * G::kFw;
    if (line < G::kPitchH && d < G::kInD && h < G::kInH) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int c = block * G::kCk + chunk * 8 + i;
#pragma unroll
        for (int b = 0; b < G::kFw; ++b) {
          if (w + b < G::kInW && (G::kCIn % G::kCk == 0 || c < G::kCIn)) x[b][i] = value(plane / G::kPitchD, c, d, h, w + b);
        }
      }
    }
  }
  const i64 end = G::kRows + 2 * G::kGuard;
  u32 most[G::kFw];  // the row's largest |x| as bits, whose order is the same
#pragma unroll
  for (int b = 0; b < G::kFw; ++b) {
    if (row + G::kGuard < end) {
      u32 hi[4], lo[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = x[b][2 * i] * up, q = x[b][2 * i + 1] * up;
        F16 hp, hq, lp, lq;
        from_float(p, hp); from_float(q, hq);
        from_float((p - to_float(hp)) * lo_up, lp); from_float((q - to_float(hq)) * lo_up, lq);
        hi[i] = hp.bits | (u32)hq.bits << 16;
        lo[i] = lp.bits | (u32)lq.bits << 16;
      }
      const i64 at = (i64)((component + b) * G::kBlocks + block) * G::kPlaneBytes + (row + G::kGuard) * (G::kCk * 2) +
                     16 * (G::kDepthStreaming ? chunk : swizzle((int)(row + G::kGuard), chunk, G::kCk));  // depth streaming: by TMA
      *(uint4*)(a.ws + G::kCopy + at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      if (G::kInputLo) *(uint4*)(a.ws + G::kCopy + G::kCopyHalf + at) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
    most[b] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most[b] = max(most[b], __float_as_uint(x[b][i]) & 0x7fffffffu);
#pragma unroll
    for (int d = rows; d < 32; d <<= 1) most[b] = max(most[b], __shfl_xor_sync(~0u, most[b], d));
  }
  if (!first) continue;
  if constexpr (across > 1) {  // the row's other channels are in other warps
    __shared__ u32 other[8][G::kFw][rows];
    if (lane < rows) {
#pragma unroll
      for (int b = 0; b < G::kFw; ++b) other[warp][b][lane] = most[b];
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < across; ++w)
#pragma unroll
      for (int b = 0; b < G::kFw; ++b) most[b] = max(most[b], other[warp / across * across + w][b][lane % rows]);
  }
  // The largest |x|, and the smallest largest |x| of a row that is not all zero.
  u32 top = 0, low = 0x7f800000u;
#pragma unroll
  for (int b = 0; b < G::kFw; ++b) {
    top = max(top, most[b]);
    if (most[b]) low = min(low, most[b]);
  }
#pragma unroll
  for (int d = 1; d < rows; d <<= 1) {
    top = max(top, __shfl_xor_sync(~0u, top, d));
    low = min(low, __shfl_xor_sync(~0u, low, d));
  }
  __shared__ u32 tops[8], lows[8];
  if (lane == 0) { tops[warp] = top; lows[warp] = low; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; ++w) { top = max(top, tops[w]); low = min(low, lows[w]); }
    ((uint2*)(a.ws + G::kExtremes))[part] = make_uint2(top, low);
  }
  }
}

// One block looks at all extremes, which were converted with the scale 2^guess if they were; see fit.
DEVICE void choose_scale(const uint2* extremes, int count, Scale* out, int guess, bool guessed, int lo) {
  __shared__ u32 tops[32], lows[32];
  u32 top = 0, low = 0x7f800000u;
  for (int i = threadIdx.x; i < count; i += 8 * blockDim.x) {  // eight loads under way together
    uint2 e[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) e[u] = i + u * blockDim.x < count ? extremes[i + u * blockDim.x] : make_uint2(0, 0x7f800000u);
#pragma unroll
    for (int u = 0; u < 8; ++u) { top = max(top, e[u].x); low = min(low, e[u].y); }
  }
  for (int d = 16; d; d >>= 1) {
    top = max(top, __shfl_xor_sync(~0u, top, d));
    low = min(low, __shfl_xor_sync(~0u, low, d));
  }
  if (threadIdx.x % 32 == 0) { tops[threadIdx.x / 32] = top; lows[threadIdx.x / 32] = low; }
  __syncthreads();
  if (threadIdx.x) return;
  for (int w = 1; w < (int)blockDim.x / 32; ++w) { top = max(top, tops[w]); low = min(low, lows[w]); }
  Fitting f = {guess, lo, false, top >= 0x7f800000u};  // infinite or not a number
  if (top && !f.fails) f = fit((int)(top >> 23) - 127, (int)(low >> 23) - 127, guess, guessed, lo);  // exponents
  auto power = [](int e) { return __int_as_float((e + 127) << 23); };
  *out = Scale{power(f.shift), power(-f.shift), power(f.lo), f.fails, f.again};
}

// ---- Weights: the stream of steps' weights [column block][step][hi, lo][column][ck] ([hi, lo][step].. for depth streaming), swizzled ----------------
template <class G, class F> DEVICE void weight_extremes(const Args& a, F value) {
  // One thread a (tap, column): the largest over input channels.
  const int i = blockIdx.x * blockDim.x + threadIdx.x, taps = G::kKd * G::kKh * G::kKw;
  u32 top = 0;
  if (i < taps * G::kCOut) {
    const int tap = i % taps, co = i / taps;
    for (int ci = 0; ci < G::kCIn; ++ci) {
      top = max(top, __float_as_uint(value(ci, co, tap / (G::kKh * G::kKw), tap / G::kKw % G::kKh, tap % G::kKw)) & 0x7fffffffu);
    }
  }
  if (i < G::kWeightExtremeCount) ((uint2*)(a.packed + G::kWeightExtremes))[i] = make_uint2(top, top ? top : 0x7f800000u);
}
template <class G, class F> DEVICE void pack_weights(const Args& a, const int (*tap)[3], F value) {
  const Scale& scale = *(const Scale*)(a.packed + G::kWeightScale);
  constexpr int chunks = G::kCk / 8;
  const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (i64)G::kColumnBlocks * G::kSteps * G::kN * chunks) return;
  const int chunk = (int)(i % chunks), column = (int)(i / chunks % G::kN);
  const int step = (int)(i / chunks / G::kN % G::kSteps), part = (int)(i / chunks / G::kN / G::kSteps);
  const int co = part * G::kN + column, block = tap[step][2] >> 16;
  u32 hi[4], lo[4];
  for (int k = 0; k < 4; ++k) {
    F16 h[2], l[2];
    for (int e = 0; e < 2; ++e) {
      const int ci = block * G::kCk + chunk * 8 + 2 * k + e;
      const float x = co < G::kCOut && ci < G::kCIn ? value(ci, co, tap[step][0], tap[step][1], tap[step][2] & 0xffff) * scale.up : 0.f;
      from_float(x, h[e]);
      from_float((x - to_float(h[e])) * scale.lo, l[e]);
    }
    hi[k] = h[0].bits | (u32)h[1].bits << 16;
    lo[k] = l[0].bits | (u32)l[1].bits << 16;
  }
  u8* step_weights = a.packed + G::kStream + (i64)(part * G::kSteps + step) * G::kWeightStep;
  const int at = column * G::kCk * 2 + 16 * swizzle(column, chunk, G::kCk);
  *(uint4*)(step_weights + at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
  if (G::kWeightsLo) *(uint4*)(step_weights + G::kWeightLo + at) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

// ---- Float32 products, for data that fp16 cannot hold: slow and plain, into the same registers --------------------
template <class G, class X, class W>
DEVICE void products_fma(float (&sum)[G::kSums][G::kNr], int phase, const int* phase_begin, const int* group_begin,
                         const int (*tap)[3], const int (*delta)[3], const Row (&rows)[G::kSubtiles][2], X x, W w) {
  const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
  for (int s = 0; s < G::kSums; ++s)
#pragma unroll
    for (int i = 0; i < G::kNr; ++i) sum[s][i] = 0.f;
#pragma unroll 1
  for (int step = group_begin[phase_begin[phase]]; step < group_begin[phase_begin[phase + 1]]; ++step) {
    const int kd = tap[step][0], kh = tap[step][1], kw = tap[step][2] & 0xffff, block = tap[step][2] >> 16;
#pragma unroll
    for (int s = 0; s < G::kSums; ++s) {
      const int v = s / G::kSubtiles, p = s % G::kSubtiles;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int* dl = delta[step * G::kPositions + v];
        const Row& row = rows[p][r];
        const int d = row.jd * G::kFd + dl[0], h = row.jh * G::kFh + dl[1], wd = row.jw * G::kFw + dl[2];
        if (!row.ok || d < 0 || h < 0 || wd < 0 || d >= G::kInD || h >= G::kInH || wd >= G::kInW) continue;
        const int last = min(G::kCIn, (block + 1) * G::kCk);
#pragma unroll 1  // this path is rare: unrolled, it is most of what the compiler works on
        for (int ci = block * G::kCk; ci < last; ++ci) {
          const float xv = x(row.n, ci, d, h, wd);
#pragma unroll
          for (int i = 0; i < G::kN / 4; ++i) {
            const int co = blockIdx.y * G::kN + 8 * (i / 2) + 2 * t + i % 2;
            if (co < G::kCOut) sum[s][(i / 2) * 4 + r * 2 + i % 2] = fmaf(xv, w(ci, co, kd, kh, kw), sum[s][(i / 2) * 4 + r * 2 + i % 2]);
          }
        }
      }
    }
  }
}
)cuda"
