R"cuda(
// Products by wgmma (sm_90a): both operands in shared memory, brought there by bulk copies that complete on barriers.
DEVICE void barrier_init(u32 b, int n) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory"); }
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

template <class G> struct Pipe {
  u32 rows, ring, full, empty, tile_full;
  const u8* stream;
  const int* group_begin;
  int done;
  int group;  // the warpgroup, the same in all lanes for the compiler too

  DEVICE void fetch(int g) {  // by one thread
    const int from = group_begin[g], bytes = (group_begin[g + 1] - from) * G::kSlabBytes, st = g % G::kStages;
    barrier_expect(full + 8 * st, bytes);
    bulk_copy(ring + st * G::kStageBytes, stream + (i64)from * G::kSlabBytes, bytes, full + 8 * st);
  }
  DEVICE void start(const Args& a, u32 shared, int tile, const i64* chunk, const int* groups) {
    rows = shared;
    ring = shared + G::kTileShared;
    full = ring + G::kStages * G::kStageBytes;
    empty = full + 8 * G::kStages;
    tile_full = empty + 8 * G::kStages;
    group_begin = groups;
    stream = a.packed + G::kStream + (i64)blockIdx.y * G::kSteps * G::kSlabBytes;
    done = 0;
    group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kStages; ++i) { barrier_init(full + 8 * i, 1); barrier_init(empty + 8 * i, G::kThreads / 128); }
      barrier_init(tile_full, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const u8* from = a.ws + G::kCopy + (i64)tile_row<G>(tile) * (G::kCk * 2);
      barrier_expect(tile_full, G::kTileBytes);
      for (int half = 0; half <= G::kInputLo; ++half) {
        for (int c = 0; c < G::kChunks; ++c) {
          bulk_copy(rows + half * G::kTileHalf + c * G::kChunkBytes, from + half * G::kCopyHalf + chunk[c], G::kChunkBytes, tile_full);
        }
      }
      for (int g = 0; g < G::kStages && g < G::kGroups; ++g) fetch(g);
    }
    barrier_wait(tile_full, 0);
  }
  DEVICE u32 next() {
    const int st = done % G::kStages;
    barrier_wait(full + 8 * st, done / G::kStages & 1);
    return ring + st * G::kStageBytes;
  }
  // All products of this group are done. The stage of the group before is refilled: everyone has left it by now, or will soon.
  DEVICE void release() {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * (done % G::kStages));
    const int old = done - 1, g = old + G::kStages;
    if (threadIdx.x == 0 && old >= 0 && g < G::kGroups) {
      barrier_wait(empty + 8 * (old % G::kStages), old / G::kStages & 1);
      fetch(g);
    }
    ++done;
  }
};

template <class G>
DEVICE void multiply(float (&sum)[G::kSums][G::kNr], int group, u32 rows, u32 slab, const int* offset, bool add) {
  constexpr int step = (G::kBoxes ? G::kPitchW : 8) * G::kCk * 2;
#pragma unroll
  for (int k = 0; k < G::kCk / 16; ++k) {
    const u64 w = descriptor<G>(slab + k * 32, 8 * G::kCk * 2);
#pragma unroll
    for (int s = 0; s < G::kSums; ++s) {
      const u32 at = rows + offset[s / G::kPieces] + piece_row<G>(group * G::kPieces + s % G::kPieces) * (G::kCk * 2) + k * 32;
      wgmma<G::kN>(sum[s], descriptor<G>(at, step), w, add || k > 0);
    }
  }
}

template <class G> DEVICE void products(float (&sum)[G::kSums][G::kNr], Pipe<G>& pipe, int cls, const int* class_begin, const int* offset) {
  constexpr bool exact = G::kInputLo || G::kWeightsLo;
  constexpr int slab_lo = G::kN * G::kCk * 2;
  const int begin = class_begin[cls], end = class_begin[cls + 1];
  if (begin == end || exact) {
#pragma unroll
    for (int s = 0; s < G::kSums; ++s)
#pragma unroll
      for (int i = 0; i < G::kNr; ++i) sum[s][i] = 0.f;
  }
  for (int g = begin; g < end; ++g) {
    const u32 stage = pipe.next();
    const int first = pipe.group_begin[g], count = pipe.group_begin[g + 1] - first;
    if (!exact) {
      for (int s = 0; s < count; ++s) {
        wgmma_fence();
        multiply<G>(sum, pipe.group, pipe.rows, stage + s * G::kSlabBytes, offset + (first + s) * G::kVariants, g > begin || s > 0);
        wgmma_commit();
      }
      wgmma_wait();
      hold(sum);
    } else {
      // hi*lo + lo*hi first, at 2^11 their size; then hi*hi on top: at most 128 terms before they reach the sum.
      float part[G::kSums][G::kNr];
      for (int s = 0; s < count; ++s) {
        const u32 slab = stage + s * G::kSlabBytes;
        const int* at = offset + (first + s) * G::kVariants;
        wgmma_fence();
        if (G::kInputLo) multiply<G>(part, pipe.group, pipe.rows + G::kTileHalf, slab, at, s > 0);
        if (G::kWeightsLo) multiply<G>(part, pipe.group, pipe.rows, slab + slab_lo, at, G::kInputLo || s > 0);
        wgmma_commit();
      }
      wgmma_wait();
      hold(part);
#pragma unroll
      for (int s = 0; s < G::kSums; ++s)
#pragma unroll
        for (int i = 0; i < G::kNr; ++i) part[s][i] *= 0x1p-11f;
      hold(part);
      for (int s = 0; s < count; ++s) {
        wgmma_fence();
        multiply<G>(part, pipe.group, pipe.rows, stage + s * G::kSlabBytes, offset + (first + s) * G::kVariants, true);
        wgmma_commit();
      }
      wgmma_wait();
      hold(part);
#pragma unroll
      for (int s = 0; s < G::kSums; ++s)
#pragma unroll
        for (int i = 0; i < G::kNr; ++i) sum[s][i] += part[s][i];
    }
    pipe.release();
  }
}
)cuda"
