R"cuda(
// Products by wgmma (sm_90a): both operands in shared memory, brought there by bulk copies that complete on barriers.
DEVICE void barrier_init(u32 b, int n) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory"); }
DEVICE void barrier_end(u32 b) { asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(b) : "memory"); }
DEVICE void barrier_expect(u32 b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory"); }
DEVICE void barrier_wait(u32 b, u32 parity) {
  asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}\n"
               ::"r"(b), "r"(parity) : "memory");
}
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
template <int A, int B> DEVICE void hold(float (&d)[A][B]) {  // values may not move across a wait
#pragma unroll
  for (int i = 0; i < A; ++i)
#pragma unroll
    for (int j = 0; j < B; ++j) asm volatile("" : "+f"(d[i][j])::"memory");
}

// Address >> 4, distance of 8-row groups >> 4 in bits 32-45, swizzle (1: 128 bytes, 2: 64, 3: 32) in bits 62-63. The
// swizzle works on absolute addresses, so any row can be the first.
template <class G> DEVICE u64 descriptor(u32 at, int group_bytes) {
  constexpr u64 kind = G::kCk == 64 ? 1 : G::kCk == 32 ? 2 : 3;
  return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(u32)(group_bytes >> 4) << 32 | kind << 62;
}

// The same so many bytes further on.
DEVICE u64 moved(u64 descriptor, u32 bytes) { return descriptor >> 32 << 32 | (u32)descriptor + bytes / 16; }

// Counts the warpgroups that leave a place; true for the last one.
template <class G> DEVICE bool last_to_leave(u32 counter) {
  u32 before;
  asm volatile("atom.acq_rel.cta.shared.inc.u32 %0, [%1], %2;" : "=r"(before) : "r"(counter), "n"(G::kThreads / 128 - 1) : "memory");
  return before == G::kThreads / 128 - 1;
}
DEVICE void clear_counter(u32 at) { asm volatile("st.shared.u32 [%0], 0;" ::"r"(at) : "memory"); }

template <class G> struct Pipe {
  // One group of products stays in flight while the next one is waited for: for few warpgroups and one product a term.
  static constexpr bool kAhead = !G::kInputLo && !G::kWeightsLo && G::kThreads <= 256;
  static constexpr int kFull = G::kStages * G::kStageBytes, kTileFull = kFull + 8 * G::kStages, kLeft = kTileFull + 8;
  static constexpr bool kFew = !G::kBoxes && G::kLines > 0;  // whole lines: many warpgroups with few registers
  u32 ring;  // the stages; behind them barriers: stage filled, tile there, stage left by all
  u64 rows[G::kSubtiles], weights;  // descriptors of the tile's subtiles and of the ring; everything else is a constant away
  const u8* packed;
  const int* group_begin;

  DEVICE void fetch(int g) {  // by one thread
    if (kAhead) refresh();
    const int from = group_begin[g], bytes = (group_begin[g + 1] - from) * G::kStepBytes, st = g % G::kStages;
    barrier_expect(ring + kFull + 8 * st, bytes);
    const u8* stream = packed + G::kStream + (i64)blockIdx.y * G::kSteps * G::kStepBytes;
    bulk_copy(ring + st * G::kStageBytes, stream + (i64)from * G::kStepBytes, bytes, ring + kFull + 8 * st);
  }
  DEVICE void start(const Args& a, u32 shared, int tile, const i64* segment, const int* groups) {
    ring = shared + G::kTileShared;
    const u32 tile_full = ring + kTileFull;
    group_begin = groups;
    packed = a.packed;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same in all lanes for the compiler too
#pragma unroll
    for (int p = 0; p < G::kSubtiles; ++p) {
      rows[p] = descriptor<G>(shared + subtile_row<G>(warpgroup * G::kSubtiles + p) * (G::kCk * 2), (G::kBoxes ? G::kPitchW : 8) * G::kCk * 2);
    }
    weights = descriptor<G>(ring, 8 * G::kCk * 2);
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kStages; ++i) {
        barrier_init(ring + kFull + 8 * i, 1);
        if (kAhead) clear_counter(ring + kLeft + 8 * i); else barrier_init(ring + kLeft + 8 * i, G::kThreads / 128);
      }
      barrier_init(tile_full, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const u8* from = a.ws + G::kCopy + (i64)tile_row<G>(tile) * (G::kCk * 2);
      barrier_expect(tile_full, G::kTileHalf * (1 + G::kInputLo));
      for (int half = 0; half <= G::kInputLo; ++half) {
        for (int c = 0; c < G::kSegments; ++c) {
          bulk_copy(shared + half * G::kTileHalf + c * G::kSegmentBytes, from + half * G::kCopyHalf + segment[c], G::kSegmentBytes, tile_full);
        }
      }
      for (int g = 0; g < G::kStages && g < G::kGroups; ++g) fetch(g);
    }
    barrier_wait(tile_full, 0);
  }
  // Everyone is done, and another start may follow.
  DEVICE void stop() {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < G::kStages; ++i) {
      barrier_end(ring + kFull + 8 * i);
      if (!kAhead) barrier_end(ring + kLeft + 8 * i);
    }
    barrier_end(ring + kTileFull);
  }
  // Addresses are not computed ahead of here, for they would not fit the registers.
  DEVICE void refresh() { asm volatile("" : "+r"(ring)); }
  DEVICE void refresh_few() {  // nor descriptors kept from one group to the next
    if (!kFew) return;
    asm volatile("" : "+l"(weights));
#pragma unroll
    for (int p = 0; p < G::kSubtiles; ++p) asm volatile("" : "+l"(rows[p]));
  }
  DEVICE void wait(int g) { barrier_wait(ring + kFull + 8 * (g % G::kStages), g / G::kStages & 1); }
  // All products of group g are done. Either who leaves a stage last has it refilled at once; or the last warpgroup refills
  // the stage of the group before, which everyone has left by now, or will soon: that takes fewer registers.
  DEVICE void release(int g) {
    if (threadIdx.x % 128 != 0) return;
    if (kAhead) {
      if (last_to_leave<G>(ring + kLeft + 8 * (g % G::kStages)) && g + G::kStages < G::kGroups) fetch(g + G::kStages);
    } else {
      barrier_arrive(ring + kLeft + 8 * (g % G::kStages));
      const int old = g - 1, next = old + G::kStages;
      if (threadIdx.x == G::kThreads - 128 && old >= 0 && next < G::kGroups) {
        barrier_wait(ring + kLeft + 8 * (old % G::kStages), old / G::kStages & 1);
        fetch(next);
      }
    }
  }
};

// sum += rows x step's weights for one step. `tile` and `step's weights` are bytes from the tile's and the ring's first.
template <class G, class P>
DEVICE void multiply(float (&sum)[G::kSums][G::kNr], const P& pipe, int tile, int step_weights, const int* offset, bool add) {
#pragma unroll
  for (int k = 0; k < G::kCk / 16; ++k) {
#pragma unroll
    for (int s = 0; s < G::kSums; ++s) {
      wgmma<G::kN>(sum[s], pipe.rows[s % G::kSubtiles] + (u64)((tile + offset[s / G::kSubtiles] + k * 32) >> 4),
                   pipe.weights + (u64)((step_weights + k * 32) >> 4), add || k > 0);
    }
  }
}

// One group of steps; `g` and `offset` are literals of the generated code, so that addresses are constants.
template <class G, int COUNT>
DEVICE void group_products(float (&sum)[G::kSums][G::kNr], Pipe<G>& pipe, int g, const int (&offset)[COUNT * G::kPositions], bool first, bool last) {
  constexpr bool exact = G::kInputLo || G::kWeightsLo;
  constexpr int step_weights_lo = G::kN * G::kCk * 2;
  const int stage = g % G::kStages * G::kStageBytes;
  pipe.wait(g);
  pipe.refresh_few();
  if (!exact) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < COUNT; ++s) multiply<G>(sum, pipe, 0, stage + s * G::kStepBytes, offset + s * G::kPositions, !first || s > 0);
    wgmma_commit();
    if (Pipe<G>::kAhead && !first) {
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      pipe.release(g - 1);
    }
    if (!Pipe<G>::kAhead || last) {
      wgmma_wait();
      hold(sum);
      pipe.release(g);
    }
  } else {
    // hi*lo + lo*hi first, at 2^11 their size; then hi*hi on top: at most 128 terms before they reach the sum.
    float part[G::kSums][G::kNr];
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      const int step_weights = stage + s * G::kStepBytes;
      if (G::kInputLo) multiply<G>(part, pipe, G::kTileHalf, step_weights, offset + s * G::kPositions, s > 0);
      if (G::kWeightsLo) multiply<G>(part, pipe, 0, step_weights + step_weights_lo, offset + s * G::kPositions, G::kInputLo || s > 0);
    }
    wgmma_commit();
    wgmma_wait();
    hold(part);
#pragma unroll
    for (int s = 0; s < G::kSums; ++s)
#pragma unroll
      for (int i = 0; i < G::kNr; ++i) part[s][i] *= 0x1p-11f;
    hold(part);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < COUNT; ++s) multiply<G>(part, pipe, 0, stage + s * G::kStepBytes, offset + s * G::kPositions, true);
    wgmma_commit();
    wgmma_wait();
    hold(part);
#pragma unroll
    for (int s = 0; s < G::kSums; ++s)
#pragma unroll
      for (int i = 0; i < G::kNr; ++i) sum[s][i] = first ? part[s][i] : sum[s][i] + part[s][i];
    if (Pipe<G>::kFew) hold(sum);  // later, beside the next group's products, they would need a third set of registers
    pipe.release(g);
  }
}
)cuda"
