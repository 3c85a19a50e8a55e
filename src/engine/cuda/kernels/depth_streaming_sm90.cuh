R"cuda(
// Depth streaming (sm_90a, see schedule/depth_streaming.h): persistent blocks keep their weights. One warpgroup is the producer
// of planes of the input, by TMA into a ring; the others multiply and finish one subtile of a tile after another. They, or pairs of
// them, have the tensor cores in turn (ping-pong): who has issued its products lets the next ones, and its epilogue runs behind the
// others' products.
struct alignas(64) TensorMap { u64 opaque[16]; };
struct Maps { TensorMap even, odd, output; };  // views of the copy for even and odd shifts, and the output

DEVICE void tensor_load(u32 to, const TensorMap& map, int pair, int line, int part, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3, %5, %6}], [%2];"
               ::"r"(to), "l"(&map), "r"(barrier), "r"(0), "r"(pair), "r"(line), "r"(part) : "memory");
}
// Nobody reads the output again here: it may leave the cache before what is read.
DEVICE void tensor_store(const TensorMap& map, u32 from, int w, int h, int d, int channel) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;"
               ::"l"(&map), "r"(from), "r"(w), "r"(h), "r"(d), "r"(channel), "l"(policy) : "memory");
}
// Four outputs side by side of channel `row` of 16 and place `lane / 4` of eight, where TMA's swizzle has them.
DEVICE void stage(u32 at, int row, const float (&y)[4]) {
  const int place = (int)threadIdx.x % 32 / 4 ^ (row & 7);
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + row * 128 + place * 16), "f"(y[0]), "f"(y[1]), "f"(y[2]), "f"(y[3]) : "memory");
}
// What was staged before has been read.
DEVICE void stage_free() {
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  __syncwarp();
}
DEVICE void stage_store(const TensorMap& map, u32 from, int w, int h, int d, int channel, bool ok) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  if (ok) tensor_store(map, from, w, h, d, channel);
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Two passes in one kernel (see co_schedule.cpp): what each has to do in this launch, and which blocks do it, by partition.
struct SharedMaps { Maps first, second; };
struct SharedLaunch {
  int job[2], jobs[2], blocks[2][4];
};

template <class G> struct DepthStream {
  // Shared memory: planes, weights (hi of all steps' weights, then lo), staged outputs, scratch, barriers: plane filled, left by all, weights.
  static constexpr int kResident = G::kBuffers * G::kTileShared, kStaged = kResident + G::kWeightShared;
  static constexpr int kScratchAt = kStaged + G::kStaging * (G::kThreads / 32), kFull = kScratchAt + G::kScratch, kLeft = kFull + 8 * G::kBuffers, kResidentFull = kLeft + 8 * G::kBuffers, kZero = kResidentFull + 8;
  static constexpr int kHalfStep = G::kN * G::kCk * 2;
  // Warpgroups that have the tensor cores together, and the threads of those and of the ones before them.
  static constexpr int kTogether = G::kThreads / 128 / G::kPingPong, kOrderThreads = 2 * kTogether * 128;
  u32 shared;
  int warpgroup, ping_pong, seen;
  Walk<G> walk;
  u64 rows[G::kPlanes][2], weights;  // descriptors: of the subtile in each plane and view, of the first step's weights

  static DEVICE void start(u32 at) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kBuffers; ++i) { barrier_init(at + kFull + 8 * i, 1); barrier_init(at + kLeft + 8 * i, G::kThreads / 32); }
      barrier_init(at + kResidentFull, 1);
      clear_counter(at + kZero);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  // The weights, and the planes of the block's jobs in the order of use; by one thread, with 24 registers.
  static DEVICE void produce(const Args& a, const Maps& maps, u32 at, const Walk<G>& walk, int depth, int line, const int (*step_runs)[2], int run_count) {
    int steps = 0;
    for (int i = 0; i < run_count; ++i) steps += step_runs[i][1];
    barrier_expect(at + kResidentFull, steps * kHalfStep * (1 + G::kWeightsLo));
    u32 to = at + kResident;
    for (int i = 0; i < run_count; ++i) {
#pragma unroll 1
      for (int s = 0; s < step_runs[i][1]; ++s, to += kHalfStep) {
        const u8* from = a.packed + G::kStream + (i64)(step_runs[i][0] + s) * kHalfStep;
        bulk_copy(to, from, kHalfStep, at + kResidentFull);
        if (G::kWeightsLo) bulk_copy(to + G::kWeightShared / 2, from + (i64)G::kSteps * kHalfStep, kHalfStep, at + kResidentFull);
      }
    }
    Place<G::kBuffers> place{0, 1};  // the first round finds all places left
    for (int k = 0; k < walk.count;) {
      const int job = walk.job(k), jobs = walk.rest_of_run(k);
      PairAt p = column_at<G>(job / G::kJd, job % G::kJd + depth, line);
#pragma unroll 1
      for (int i = 0; i < jobs + walk.planes - 1; ++i, p.line += G::kPitchH) {
        barrier_wait(at + kLeft + 8 * place.at, place.parity);
        const u32 full = at + kFull + 8 * place.at;
        barrier_expect(full, G::kBlocks * (1 + G::kInputLo) * G::kTileLines * 2 * (G::kEvenPairs + G::kOddPairs) * G::kCk * 2);
#pragma unroll 1
        for (int part = 0; part < G::kBlocks * (1 + G::kInputLo); ++part) {
          const u32 plane = at + place.at * G::kTileShared + part * G::kPartBytes;
          if (G::kEvenPairs) tensor_load(plane, maps.even, p.pair, p.line, part, full);
          if (G::kOddPairs) tensor_load(plane + G::kOddAt, maps.odd, p.pair, p.line, part, full);
        }
        place.next();
      }
      k += jobs;
    }
  }

  DEVICE void begin(u32 at, const Walk<G>& of_block) {
    shared = at;
    walk = of_block;
    seen = 0;
    warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same in all lanes for the compiler too
    ping_pong = warpgroup / kTogether;
    barrier_wait(shared + kResidentFull, 0);
    if (G::kPingPong > 1 && ping_pong == G::kPingPong - 1) named_arrive(1, kOrderThreads);
  }
  DEVICE void leave(int plane) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared + kLeft + 8 * (plane % G::kBuffers));
  }
  // Every warp sees every plane and leaves it, in order: so nobody can miss that a place was filled twice.
  DEVICE void see(int end, int needed) {
    for (; seen < end; ++seen) {
      barrier_wait(shared + kFull + 8 * (seen % G::kBuffers), seen / G::kBuffers & 1);
      if (seen < needed) {
        __syncwarp();  // all lanes have seen it
        leave(seen);
      }
    }
  }
  // Subtile q of job k: its planes are there.
  DEVICE void enter(int k, int q) {
    const int lowest = walk.plane(k);
    see(lowest + walk.planes, lowest);
    // Anew for each subtile and the same in all lanes, for the compiler too: what is computed from it stays in uniform registers and is
    // not kept for the next subtile, where there is no room.
    const u32 base = __shfl_sync(~0u, shared, 0);
    const u64 even = descriptor<G>(base, G::kEvenPairs * G::kCk * 2), odd = descriptor<G>(base, G::kOddPairs * G::kCk * 2);
    weights = moved(descriptor<G>(base, 8 * G::kCk * 2), kResident);
    u32 place = (u32)lowest % G::kBuffers;
#pragma unroll
    for (int p = 0; p < G::kPlanes; ++p, place = place + 1 == G::kBuffers ? 0 : place + 1) {
      rows[p][0] = moved(even, place * G::kTileShared + pair_row<G>(q, G::kEvenPairs) * (G::kCk * 2));
      rows[p][1] = moved(odd, place * G::kTileShared + G::kOddAt + pair_row<G>(q, G::kOddPairs) * (G::kCk * 2));
    }
  }
  // The products of job k are done, and this warpgroup's next ones are of job `next`; behind the last one, of none.
  DEVICE void leave_for(int k, int next) const {
    const int lowest = walk.plane(k), end = next < walk.count ? walk.plane(next) : lowest + walk.planes;
#pragma unroll
    for (int p = 0; p < G::kPlanes; ++p) {
      if (p < walk.planes && lowest + p < end) leave(lowest + p);
    }
  }
  DEVICE void finish() {
    const int all = walk.plane(walk.count - 1) + walk.planes;
    see(all, all);
    if (G::kStaging && threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  DEVICE void order_wait() const {
    if (G::kPingPong > 1) named_sync(1 + ping_pong, kOrderThreads);
  }
  DEVICE void order_arrive(bool last) const {  // nobody comes after the last one
    if (G::kPingPong > 1 && !last) named_arrive(1 + (ping_pong + 1) % G::kPingPong, kOrderThreads);
  }
  DEVICE void together() const {
    if (G::kPingPong > 1 && kTogether > 1) named_sync(5 + ping_pong, kTogether * 128);
  }
  // The same places plus zero, though the compiler cannot know it: what it computes from them is not kept for a later pass over the
  // same taps, where there is no room. The same in all lanes, they are added to in uniform registers.
  DEVICE DepthStream afresh() const {
    u32 zero;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(zero) : "r"(shared + kZero));
    zero = __shfl_sync(~0u, zero, 0);
    DepthStream r = *this;
#pragma unroll
    for (int i = 0; i < 2 * G::kPlanes; ++i) r.rows[i / 2][i % 2] += zero;
    r.weights += zero;
    return r;
  }
  // sum (+)= 16 terms: rows at `place` bytes in `plane` and `view`, columns at `step's weights` bytes.
  template <int N> DEVICE void multiply(float (&sum)[N / 2], int plane, int view, int place, int step_weights, bool add) const {
    wgmma<N>(sum, rows[plane][view] + (u64)(place >> 4), weights + (u64)(step_weights >> 4), add);
  }
};
// The scales of lo: whether they are hi's; from lo*hi to hi*lo (rows by columns), and from there to hi*hi.
struct LoScales {
  bool one;
  float to_columns, to_whole;
};
template <int N> DEVICE void scale(float (&d)[1][N], float by) {
#pragma unroll
  for (int i = 0; i < N; ++i) d[0][i] *= by;
  hold(d);
}
// Both width phases' sums as those of twice the columns.
template <int N> DEVICE float (&both(float (&d)[2][1][N]))[2 * N] { return reinterpret_cast<float (&)[2 * N]>(d); }
)cuda"
