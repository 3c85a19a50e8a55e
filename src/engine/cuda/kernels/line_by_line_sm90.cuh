R"cuda(
// Tiles by line (sm_90a, see schedule/line_by_line.h): persistent blocks. One warpgroup is the producer of the rows of each line
// of taps and of the steps' weights, in two rings, tile after tile; the others multiply, and while one of
// them is in its epilogue the others have the tensor cores.
template <int REGISTERS> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// A place in a ring of N, and how often the ring was gone round.
template <int N> struct Place {
  int at;
  u32 parity;
  DEVICE void next() {
    if (++at == N) { at = 0; parity ^= 1; }
  }
  DEVICE int before() const { return at == 0 ? N - 1 : at - 1; }
};

// What a launch does: the tiles from `first` on in plain waves, then those of the lists that begin at `lists`.
struct LineLaunch {
  int number, first, plain, waves, lists;
};
// The block's `wave`th tile, or kTiles if there are no more; see share_launch in schedule/line_by_line.cpp.
template <class G> DEVICE int line_tile(int wave, const LineLaunch& launch, const int* order, const int* last) {
  if (wave >= launch.waves) return G::kTiles;
  if (wave >= launch.plain) return last[launch.lists + (wave - launch.plain) * gridDim.x + blockIdx.x];
  const int s = launch.first + wave * gridDim.x + blockIdx.x;
  return order[s / G::kTilesPerPlane] * G::kTilesPerPlane + s % G::kTilesPerPlane;
}
template <class G> DEVICE bool line_exists(int tile, int shift) { return (u32)(tile / G::kTilesPerPlane + shift) < (u32)G::kPitchD; }

template <class G> struct LineStream {
  // Shared memory: lines of rows, steps' weights of weights, scratch, barriers of both rings: filled, left by all.
  static constexpr int kWeightsAt = G::kBuffers * G::kTileShared, kScratchAt = kWeightsAt + G::kStages * G::kStageBytes;
  static constexpr int kLineFull = kScratchAt + G::kScratch, kLineLeft = kLineFull + 8 * G::kBuffers;
  static constexpr int kWeightsFull = kLineLeft + 8 * G::kBuffers, kWeightsLeft = kWeightsFull + 8 * G::kStages;
  u32 shared;
  u64 rows, weights;  // descriptors of the first line and the first step's weights
  Place<G::kBuffers> line;
  Place<G::kStages> step_weights;

  static DEVICE void start(u32 at) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < G::kBuffers; ++i) { barrier_init(at + kLineFull + 8 * i, 1); barrier_init(at + kLineLeft + 8 * i, G::kThreads / 128); }
      for (int i = 0; i < G::kStages; ++i) { barrier_init(at + kWeightsFull + 8 * i, 1); barrier_init(at + kWeightsLeft + 8 * i, G::kThreads / 128); }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  // All that the block's tiles read, in the order of use; by one thread, with 24 registers.
  static DEVICE void produce(const Args& a, u32 at, const LineLaunch& launch, const i64* segment, const int* shift, const int* order, const int* last) {
    Place<G::kBuffers> line{0, 1};  // the first round finds all places left
    Place<G::kStages> step_weights{0, 1};
#pragma unroll 1
    for (int wave = 0, tile; (tile = line_tile<G>(wave, launch, order, last)) < G::kTiles; ++wave) {
#pragma unroll 1
      for (int g = 0; g < G::kGroups; ++g) {
        if (!line_exists<G>(tile, shift[g])) continue;
        barrier_wait(at + kLineLeft + 8 * line.at, line.parity);
        barrier_expect(at + kLineFull + 8 * line.at, G::kTileHalf * (1 + G::kInputLo));
#pragma unroll 1
        for (int b = 0; b < G::kFw; ++b) {
          const i64 row = (i64)(tile / G::kTilesPerPlane) * G::kPlane + tile % G::kTilesPerPlane * G::kM;
          const u8* from = a.ws + (G::kCopy + row * (G::kCk * 2) + segment[g * G::kFw + b]);
          const u32 to = at + line.at * G::kTileShared + b * G::kSegmentBytes;
          bulk_copy(to, from, G::kSegmentBytes, at + kLineFull + 8 * line.at);
          if (G::kInputLo) bulk_copy(to + G::kTileHalf, from + G::kCopyHalf, G::kSegmentBytes, at + kLineFull + 8 * line.at);
        }
        line.next();
#pragma unroll 1
        for (int k = 0; k < G::kKw; ++k) {
          barrier_wait(at + kWeightsLeft + 8 * step_weights.at, step_weights.parity);
          barrier_expect(at + kWeightsFull + 8 * step_weights.at, G::kStepBytes);
          bulk_copy(at + kWeightsAt + step_weights.at * G::kStageBytes, a.packed + (G::kStream + (i64)((int)blockIdx.y * G::kSteps + g * G::kKw + k) * G::kStepBytes),
                    G::kStepBytes, at + kWeightsFull + 8 * step_weights.at);
          step_weights.next();
        }
      }
    }
  }

  DEVICE void begin(u32 at) {
    shared = at;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same in all lanes for the compiler too
    rows = descriptor<G>(shared + subtile_row<G>(warpgroup) * (G::kCk * 2), 8 * G::kCk * 2);
    weights = descriptor<G>(shared + kWeightsAt, 8 * G::kCk * 2);
    line = {0, 0};
    step_weights = {0, 0};
  }
  DEVICE void leave(int barrier) {
    if (threadIdx.x % 128 == 0) barrier_arrive(shared + barrier);
  }
  // sum (+)= the rows `offset` bytes into half HALF of the line x half WHALF of the step's weights.
  template <int HALF, int WHALF> DEVICE void multiply(float (&sum)[G::kNr], int offset, bool add) const {
    const u64 x = rows + (u64)(u32)(line.at * (G::kTileShared >> 4)), w = weights + (u64)(u32)(step_weights.at * (G::kStageBytes >> 4));
#pragma unroll
    for (int k = 0; k < G::kCk / 16; ++k) {
      wgmma<G::kN>(sum, x + (u64)((HALF * G::kTileHalf + offset + k * 32) >> 4),
                   w + (u64)((WHALF * G::kN * G::kCk * 2 + k * 32) >> 4), add || k > 0);
    }
  }
  // sum = the products of lines [begin, end) of taps. OFFSET[tap][position]: bytes from a line's first row.
  template <int TAPS>
  DEVICE void products(float (&sum)[G::kSums][G::kNr], int tile, int begin, int end, const int* shift, const int (&offset)[TAPS * G::kSums]) {
    bool first = true;
#pragma unroll 1
    for (int g = begin; g < end; ++g) {
      if (!line_exists<G>(tile, shift[g])) continue;
      barrier_wait(shared + kLineFull + 8 * line.at, line.parity);
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        barrier_wait(shared + kWeightsFull + 8 * step_weights.at, step_weights.parity);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < G::kSums; ++s) multiply<0, 0>(sum[s], offset[tap * G::kSums + s], !first || tap > 0);
        wgmma_commit();
        // The tap before is done; this one stays in flight.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (tap > 0 || !first) {
          leave(kWeightsLeft + 8 * step_weights.before());
          if (tap == 0) leave(kLineLeft + 8 * line.before());
        }
        step_weights.next();
      }
      line.next();
      first = false;
    }
    wgmma_wait();
    hold(sum);
    leave(kWeightsLeft + 8 * step_weights.before());
    leave(kLineLeft + 8 * line.before());
  }
  // The same with split operands, few terms before they reach the sum. One position's after the other's, and the taps in a
  // loop: the sums leave no room for more. x_lo, w_lo: the scales of the two lo.
  DEVICE void split_products(float (&sum)[G::kSums][G::kNr], int tile, int begin, int end, const int* shift, const int* offset, float x_lo, float w_lo) {
    if (x_lo == 1.f && w_lo == 1.f) split_products<true>(sum, tile, begin, end, shift, offset, 1.f, 1.f);
    else split_products<false>(sum, tile, begin, end, shift, offset, 1.f / x_lo, 1.f / w_lo);
  }
  template <bool ONE_SCALE>
  DEVICE void split_products(float (&sum)[G::kSums][G::kNr], int tile, int begin, int end, const int* shift, const int* offset, float x_lo, float w_lo) {
    float part[1][G::kNr];
#pragma unroll
    for (int i = 0; i < G::kNr; ++i) part[0][i] = 0.f;
#pragma unroll
    for (int s = 0; s < G::kSums; ++s)
#pragma unroll
      for (int i = 0; i < G::kNr; ++i) sum[s][i] = 0.f;
#pragma unroll 1
    for (int g = begin; g < end; ++g) {
      if (!line_exists<G>(tile, shift[g])) continue;
      barrier_wait(shared + kLineFull + 8 * line.at, line.parity);
#pragma unroll 1
      for (int tap = 0; tap < G::kKw; ++tap) {
        barrier_wait(shared + kWeightsFull + 8 * step_weights.at, step_weights.parity);
#pragma unroll
        for (int s = 0; s < G::kSums; ++s) {
          const int rows_at = offset[tap * G::kSums + s];
          if (ONE_SCALE) {  // hi*lo + lo*hi + hi*hi, the small ones first
            wgmma_fence();
            if (G::kInputLo) multiply<1, 0>(part[0], rows_at, false);
            if (G::kWeightsLo) multiply<0, 1>(part[0], rows_at, G::kInputLo);
            multiply<0, 0>(part[0], rows_at, true);
            add_part(sum[s], part, 1.f);
          } else {  // for lo of another scale than hi, each by itself
            if (G::kInputLo) add_product<1, 0>(sum[s], part, rows_at, x_lo);
            if (G::kWeightsLo) add_product<0, 1>(sum[s], part, rows_at, w_lo);
            add_product<0, 0>(sum[s], part, rows_at, 1.f);
          }
          hold(sum);
        }
        leave(kWeightsLeft + 8 * step_weights.at);
        step_weights.next();
      }
      leave(kLineLeft + 8 * line.at);
      line.next();
    }
  }
  // sum += part * scale, once its products are there.
  static DEVICE void add_part(float (&sum)[G::kNr], float (&part)[1][G::kNr], float scale) {
    wgmma_commit();
    wgmma_wait();
    hold(part);
#pragma unroll
    for (int i = 0; i < G::kNr; ++i) sum[i] = fmaf(part[0][i], scale, sum[i]);
  }
  template <int HALF, int WHALF> DEVICE void add_product(float (&sum)[G::kNr], float (&part)[1][G::kNr], int rows_at, float scale) const {
    wgmma_fence();
    multiply<HALF, WHALF>(part[0], rows_at, false);
    add_part(sum, part, scale);
  }
};
)cuda"
