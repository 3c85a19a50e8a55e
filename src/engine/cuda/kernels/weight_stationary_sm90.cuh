R"cuda(
// Weights that stay (sm_90a): a block lives as long as the kernel, keeps the weights of its share of the phases in shared
// memory and computes one tile after another, the next one arriving meanwhile. Warpgroups (or pairs of them) take turns
// with the tensor cores: who has issued its products passes the turn on, and its epilogue runs behind the others'
// products. One product a term: with hi and lo there is no room for two tiles.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

template <class G> struct Held {
  static constexpr int kWarpgroups = G::kThreads / 128, kTakers = G::kTakers;
  static constexpr int kTakerThreads = G::kThreads / kTakers;
  // What lies behind the tiles: weights, scratch, barriers.
  static constexpr int kKept = G::kBuffers * G::kTileShared, kFull = kKept + G::kWeightShared + G::kScratch;
  static constexpr int kKeptFull = kFull + 8 * G::kBuffers, kLeft = kKeptFull + 8;
  u32 shared;
  u64 rows[G::kPieces], weights;  // descriptors of this tile's pieces and of the weights
  const i64* chunk;
  int chunks, taker;

  DEVICE void load(const Args& a, int tile, int buffer) {  // by one thread
    const u8* from = a.ws + G::kCopy + (i64)tile_row<G>(tile) * (G::kCk * 2);
    const u32 to = shared + buffer * G::kTileShared, full = shared + kFull + 8 * buffer;
    barrier_expect(full, chunks * G::kChunkBytes);
    for (int c = 0; c < chunks; ++c) bulk_copy(to + c * G::kChunkBytes, from + chunk[c], G::kChunkBytes, full);
  }
  // `slabs`: runs of steps (first, count) that this block keeps.
  DEVICE void start(const Args& a, u32 at, int tile, int end, int stride, const i64* chunk_table, int chunk_count, const int (*slabs)[2], int slab_count) {
    shared = at;
    chunk = chunk_table;
    chunks = chunk_count;
    taker = warpgroup() * 128 / kTakerThreads;
    weights = descriptor<G>(shared + kKept, 8 * G::kCk * 2);
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kBuffers; ++i) { barrier_init(shared + kFull + 8 * i, 1); clear_counter(shared + kLeft + 4 * i); }
      barrier_init(shared + kKeptFull, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const u8* stream = a.packed + G::kStream + (i64)blockIdx.y * G::kSteps * G::kSlabBytes;
      load(a, tile, 0);
      int steps = 0;
      for (int i = 0; i < slab_count; ++i) steps += slabs[i][1];
      barrier_expect(shared + kKeptFull, steps * G::kSlabBytes);
      u32 to = shared + kKept;
      for (int i = 0; i < slab_count; ++i) {
        for (int s = 0; s < slabs[i][1]; ++s, to += G::kSlabBytes) {
          bulk_copy(to, stream + (i64)(slabs[i][0] + s) * G::kSlabBytes, G::kSlabBytes, shared + kKeptFull);
        }
      }
      for (int i = 1; i < G::kBuffers && tile + i * stride < end; ++i) load(a, tile + i * stride, i);
    }
    barrier_wait(shared + kKeptFull, 0);
    if (kTakers > 1 && taker == kTakers - 1) named_arrive(1, 2 * kTakerThreads);
  }
  static DEVICE int warpgroup() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }  // the same in all lanes for the compiler too
  // The block's `turn`th tile is there.
  DEVICE void enter(int turn) {
    const int buffer = turn % G::kBuffers;
    barrier_wait(shared + kFull + 8 * buffer, turn / G::kBuffers & 1);
#pragma unroll
    for (int p = 0; p < G::kPieces; ++p) {
      rows[p] = descriptor<G>(shared + buffer * G::kTileShared + piece_row<G>(warpgroup() * G::kPieces + p) * (G::kCk * 2),
                              (G::kBoxes ? G::kPitchW : 8) * G::kCk * 2);
    }
  }
  // All products of that tile are done; who leaves last has its place filled with the tile after the next ones.
  DEVICE void leave(const Args& a, int turn, int tile, int end, int stride) {
    const int next = tile + G::kBuffers * stride;
    if (threadIdx.x % 128 == 0 && last_to_leave<G>(shared + kLeft + turn % G::kBuffers * 4) && next < end) load(a, next, turn % G::kBuffers);
  }
  DEVICE void take_turn() {
    if (kTakers > 1) named_sync(1 + taker, 2 * kTakerThreads);
  }
  DEVICE void pass_turn(bool last) {  // nobody comes after the last one
    if (kTakers > 1 && !(last && taker == kTakers - 1)) named_arrive(1 + (taker + 1) % kTakers, 2 * kTakerThreads);
  }
  // Warpgroups that take their turn together stay together.
  DEVICE void together() {
    if (kTakers > 1 && kTakerThreads > 128) named_sync(5 + taker, kTakerThreads);
  }
};

// sum = the products of COUNT steps; `slab` is in bytes from the weights' first.
template <class G, int COUNT>
DEVICE void held_steps(float (&sum)[G::kSums][G::kNr], const Held<G>& pipe, int slab, const int (&offset)[COUNT * G::kVariants]) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) multiply<G>(sum, pipe, 0, slab + s * G::kSlabBytes, offset + s * G::kVariants, s > 0);
}
)cuda"
