R"cuda(
// Products by mma.sync (sm_80 and newer): operands by cp.async into swizzled shared memory and by ldmatrix from there.
DEVICE void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEVICE void ldmatrix(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEVICE void mma(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class G> struct Pipe {
  u32 rows, ring;          // shared memory: the tile's row segments, the stages of weights
  const u8* stream;
  const int* group_begin;

  DEVICE void fetch(int group) {
    if (group < G::kGroups) {
      const int from = group_begin[group], bytes = (group_begin[group + 1] - from) * G::kStepBytes;
      const u32 to = ring + group % G::kStages * G::kStageBytes;
      for (int i = threadIdx.x * 16; i < bytes; i += G::kThreads * 16) copy16(to + i, stream + (i64)from * G::kStepBytes + i);
    }
    copies_commit();  // an empty group keeps the count
  }
  DEVICE void start(const Args& a, u32 shared, int tile, const i64* segment, const int* groups) {
    rows = shared;
    ring = shared + G::kTileShared;
    group_begin = groups;
    stream = a.packed + G::kStream + (i64)blockIdx.y * G::kSteps * G::kStepBytes;
    const u8* from = a.ws + G::kCopy + (i64)tile_row<G>(tile) * (G::kCk * 2);
    for (int half = 0; half <= G::kInputLo; ++half) {
      for (int c = 0; c < G::kSegments; ++c) {
        const u32 to = rows + half * G::kTileHalf + c * G::kSegmentBytes;
        for (int i = threadIdx.x * 16; i < G::kSegmentBytes; i += G::kThreads * 16) copy16(to + i, from + half * G::kCopyHalf + segment[c] + i);
      }
    }
    for (int g = 0; g < G::kStages - 1; ++g) fetch(g);
  }
  DEVICE void stop() {}
  DEVICE void refresh() {}
  // The stage of group g, when it has arrived.
  DEVICE u32 next(int g) {
    copies_wait<G::kStages - 2>();
    __syncthreads();
    fetch(g + G::kStages - 1);
    return ring + g % G::kStages * G::kStageBytes;
  }
};

template <int A, int B> DEVICE void zero(float (&d)[A][B]) {
#pragma unroll
  for (int i = 0; i < A; ++i)
#pragma unroll
    for (int j = 0; j < B; ++j) d[i][j] = 0.f;
}

// sum += rows x step's weights for one step, all positions and subtiles.
template <class G> DEVICE void multiply(float (&sum)[G::kSums][G::kNr], u32 rows, u32 step_weights, const int* offset) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
#pragma unroll
  for (int k = 0; k < G::kCk / 16; ++k) {
#pragma unroll
    for (int s = 0; s < G::kSums; ++s) {
      const int i = warp * 16 + lane % 16, q = group * G::kSubtiles + s % G::kSubtiles;
      const int row = offset[s / G::kSubtiles] / (G::kCk * 2) + subtile_row<G>(q) + (G::kBoxes ? i / 8 * G::kPitchW + i % 8 : i);
      u32 x[4];
      ldmatrix(x, rows + row * (G::kCk * 2) + 16 * swizzle(row, 2 * k + lane / 16, G::kCk));
#pragma unroll
      for (int j = 0; j < G::kN / 16; ++j) {
        const int column = j * 16 + lane / 16 * 8 + lane % 8;
        u32 w[4];
        ldmatrix(w, step_weights + column * (G::kCk * 2) + 16 * swizzle(column, 2 * k + lane / 8 % 2, G::kCk));
        mma(&sum[s][j * 8], x, w[0], w[1]);
        mma(&sum[s][j * 8 + 4], x, w[2], w[3]);
      }
    }
  }
}

// The offsets of step s, chosen among literals: an array that is indexed at run time would lie in local memory.
template <class G, int COUNT>
DEVICE void step_offsets(int (&to)[G::kPositions], const int (&offset)[COUNT * G::kPositions], int s) {
#pragma unroll
  for (int v = 0; v < G::kPositions; ++v) {
    to[v] = offset[v];
#pragma unroll
    for (int j = 1; j < COUNT; ++j) to[v] = s == j ? offset[j * G::kPositions + v] : to[v];
  }
}

// One group of steps; `g` and `offset` are literals of the generated code.
template <class G, int COUNT>
DEVICE void group_products(float (&sum)[G::kSums][G::kNr], Pipe<G>& pipe, int g, const int (&offset)[COUNT * G::kPositions], bool first, bool) {
  constexpr bool exact = G::kInputLo || G::kWeightsLo;
  constexpr int step_weights_lo = G::kN * G::kCk * 2;
  const u32 stage = pipe.next(g);
  if (first) zero(sum);
  if (!exact) {
#pragma unroll
    for (int s = 0; s < COUNT; ++s) multiply<G>(sum, pipe.rows, stage + s * G::kStepBytes, offset + s * G::kPositions);
    return;
  }
  // hi*lo + lo*hi first, at 2^11 their size; then hi*hi on top: at most 128 terms before they reach the sum.
  float part[G::kSums][G::kNr];
  zero(part);
#pragma unroll 1
  for (int s = 0; s < COUNT; ++s) {
    const u32 step_weights = stage + s * G::kStepBytes;
    int at[G::kPositions];
    step_offsets<G, COUNT>(at, offset, s);
    if (G::kInputLo) multiply<G>(part, pipe.rows + G::kTileHalf, step_weights, at);
    if (G::kWeightsLo) multiply<G>(part, pipe.rows, step_weights + step_weights_lo, at);
  }
#pragma unroll
  for (int s = 0; s < G::kSums; ++s)
#pragma unroll
    for (int i = 0; i < G::kNr; ++i) part[s][i] *= 0x1p-11f;
#pragma unroll 1
  for (int s = 0; s < COUNT; ++s) {
    int at[G::kPositions];
    step_offsets<G, COUNT>(at, offset, s);
    multiply<G>(part, pipe.rows, stage + s * G::kStepBytes, at);
  }
#pragma unroll
  for (int s = 0; s < G::kSums; ++s)
#pragma unroll
    for (int i = 0; i < G::kNr; ++i) sum[s][i] += part[s][i];
}
)cuda"
