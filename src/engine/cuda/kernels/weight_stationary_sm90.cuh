R"cuda(
// Weight-stationary (sm_90a): a persistent block keeps the weights of its share of the phases in shared
// memory and computes one tile after another, the next one arriving meanwhile. Warpgroups (or pairs of them) have
// the tensor cores in turn (ping-pong): who has issued its products lets the next ones, and its epilogue runs behind the others'
// products. One product a term: with hi and lo there is no room for two tiles.
DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

template <class G> struct WeightStationary {
  static constexpr int kWarpgroups = G::kThreads / 128, kPingPong = G::kPingPong;
  static constexpr int kPingPongThreads = G::kThreads / kPingPong;
  // What lies behind the tiles: weights, scratch, barriers.
  static constexpr int kResident = G::kBuffers * G::kTileShared, kFull = kResident + G::kWeightShared + G::kScratch;
  static constexpr int kResidentFull = kFull + 8 * G::kBuffers, kLeft = kResidentFull + 8;
  u32 shared;
  u64 rows[G::kSubtiles], weights;  // descriptors of this tile's subtiles and of the weights
  const i64* segment;
  int segments, ping_pong;

  DEVICE void load(const Args& a, int tile, int buffer) {  // by one thread
    const u8* from = a.ws + G::kCopy + (i64)tile_row<G>(tile) * (G::kCk * 2);
    const u32 to = shared + buffer * G::kTileShared, full = shared + kFull + 8 * buffer;
    barrier_expect(full, segments * G::kSegmentBytes);
    for (int c = 0; c < segments; ++c) bulk_copy(to + c * G::kSegmentBytes, from + segment[c], G::kSegmentBytes, full);
  }
  // `steps' weights`: runs of steps (first, count) that this block keeps.
  DEVICE void start(const Args& a, u32 at, int tile, int end, int stride, const i64* segment_table, int segment_count, const int (*step_runs)[2], int run_count) {
    shared = at;
    segment = segment_table;
    segments = segment_count;
    ping_pong = warpgroup() * 128 / kPingPongThreads;
    weights = descriptor<G>(shared + kResident, 8 * G::kCk * 2);
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kBuffers; ++i) { barrier_init(shared + kFull + 8 * i, 1); clear_counter(shared + kLeft + 4 * i); }
      barrier_init(shared + kResidentFull, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const u8* stream = a.packed + G::kStream + (i64)blockIdx.y * G::kSteps * G::kStepBytes;
      load(a, tile, 0);
      int steps = 0;
      for (int i = 0; i < run_count; ++i) steps += step_runs[i][1];
      barrier_expect(shared + kResidentFull, steps * G::kStepBytes);
      u32 to = shared + kResident;
      for (int i = 0; i < run_count; ++i) {
        for (int s = 0; s < step_runs[i][1]; ++s, to += G::kStepBytes) {
          bulk_copy(to, stream + (i64)(step_runs[i][0] + s) * G::kStepBytes, G::kStepBytes, shared + kResidentFull);
        }
      }
      for (int i = 1; i < G::kBuffers && tile + i * stride < end; ++i) load(a, tile + i * stride, i);
    }
    barrier_wait(shared + kResidentFull, 0);
    if (kPingPong > 1 && ping_pong == kPingPong - 1) named_arrive(1, 2 * kPingPongThreads);
  }
  static DEVICE int warpgroup() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }  // the same in all lanes for the compiler too
  // The block's `wave`th tile is there.
  DEVICE void enter(int wave) {
    const int buffer = wave % G::kBuffers;
    barrier_wait(shared + kFull + 8 * buffer, wave / G::kBuffers & 1);
#pragma unroll
    for (int p = 0; p < G::kSubtiles; ++p) {
      rows[p] = descriptor<G>(shared + buffer * G::kTileShared + subtile_row<G>(warpgroup() * G::kSubtiles + p) * (G::kCk * 2),
                              (G::kBoxes ? G::kPitchW : 8) * G::kCk * 2);
    }
  }
  // All products of that tile are done; who leaves last has its place filled with the tile after the next ones.
  DEVICE void leave(const Args& a, int wave, int tile, int end, int stride) {
    const int next = tile + G::kBuffers * stride;
    if (threadIdx.x % 128 == 0 && last_to_leave<G>(shared + kLeft + wave % G::kBuffers * 4) && next < end) load(a, next, wave % G::kBuffers);
  }
  DEVICE void order_wait() {
    if (kPingPong > 1) named_sync(1 + ping_pong, 2 * kPingPongThreads);
  }
  DEVICE void order_arrive(bool last) {  // nobody comes after the last one
    if (kPingPong > 1 && !(last && ping_pong == kPingPong - 1)) named_arrive(1 + (ping_pong + 1) % kPingPong, 2 * kPingPongThreads);
  }
  // Warpgroups that have the tensor cores together stay together.
  DEVICE void together() {
    if (kPingPong > 1 && kPingPongThreads > 128) named_sync(5 + ping_pong, kPingPongThreads);
  }
};

// sum = the products of COUNT steps; `step's weights` is in bytes from the weights' first.
template <class G, int COUNT>
DEVICE void stationary_steps(float (&sum)[G::kSums][G::kNr], const WeightStationary<G>& pipe, int step_weights, const int (&offset)[COUNT * G::kPositions]) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) multiply<G>(sum, pipe, 0, step_weights + s * G::kStepBytes, offset + s * G::kPositions, s > 0);
}
)cuda"
