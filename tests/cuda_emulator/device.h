#pragma once
// A multiprocessor on the host, on which the text of generated kernels runs for tests: one block after the
// other, its threads as fibers that give way where they wait for one another. The text is compiled behind
// this header with every asm statement turned into a call ptx_<instruction>(outputs..., inputs...).
//
// It is stricter than a GPU in some things: shared memory starts poisoned, a place is poisoned while a copy
// to it is under way, copies must be aligned, and a block in which nobody can go on ends the program with a
// report. In others it is simpler: products are done when they are issued, and exact.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900

struct Dim3 {
  unsigned x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class A, class B>
auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) > T(b) ? T(a) : T(b);
}
using std::isinf;
template <class To, class From>
To bits_of(From x) {
  To y;
  static_assert(sizeof x == sizeof y);
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return bits_of<float>(x); }
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  const unsigned long long all = (unsigned long long){y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
template <class T>
void __stcs(T* to, T x) {
  *to = x;
}

namespace emulator {

[[noreturn]] inline void fault(const char* what) {
  std::fprintf(stderr, "block %u,%u thread %u: %s\n", blockIdx.x, blockIdx.y, threadIdx.x, what);
  std::abort();
}

// --- Threads ---
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done;
  const char* waits;  // for what
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
static bool progress;  // somebody could go on
struct Order {
  bool copies_at_once, last_thread_first;
};
static Order order;

inline void give_way(const char* waits) {
  fibers[current].waits = waits;
  swapcontext(&fibers[current].context, &scheduler);
}

// Where a number of threads meet; who only arrives does not wait.
struct Meeting {
  unsigned count = 0, generation = 0;
  bool arrive(unsigned need) {
    progress = true;
    if (++count < need) return false;
    count = 0;
    ++generation;
    return true;
  }
  void sync(unsigned need, const char* what) {
    const unsigned mine = generation;
    if (arrive(need)) return;
    while (generation == mine) give_way(what);
  }
};
static Meeting whole_block, warps[64], named[16], warpgroups[16];

static std::function<void()> kernel;
inline void enter() {
  kernel();
  fibers[current].done = true;
  progress = true;
  swapcontext(&fibers[current].context, &scheduler);
}

// --- Shared memory, its barriers, copies to it ---
alignas(1024) static unsigned char shared_memory[232 << 10];

struct Barrier {
  int count, pending;
  long bytes;
  unsigned phase;
  std::vector<std::function<void()>> copies;  // under way
  void settle() {
    if (pending < 0) fault("a barrier has more arrivals than it was made for");
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
    progress = true;
  }
};
static std::map<unsigned, Barrier> barriers;

// What a copy brings arrives now, or when somebody waits for it.
template <class F>
void copy(unsigned barrier, long bytes, F bring) {
  Barrier& b = barriers.at(barrier);
  auto arrive = [&b, bytes, bring] {
    bring();
    b.bytes -= bytes;
    b.settle();
  };
  if (order.copies_at_once)
    arrive();
  else
    b.copies.push_back(arrive);
}
inline void deliver(Barrier& b) {
  const auto copies = std::move(b.copies);
  b.copies.clear();
  for (const auto& arrive : copies) arrive();
}

// --- The copy engine's maps ---
struct TensorView {
  unsigned char* base;
  int rank, element, swizzle;
  long extents[5], strides[5];  // strides in bytes
  int box[5];
};
inline unsigned swizzled(unsigned address, int bytes) {
  return address ^ (address >> 7 & (bytes == 128 ? 7 : bytes == 64 ? 3 : 1)) << 4;
}
// Calls f(shared address, address or null) for each element of the box at `at`.
template <class F>
void each_element(const TensorView& v, unsigned shared, const int* at, F f) {
  long count = 1;
  for (int a = 0; a < v.rank; ++a) count *= v.box[a];
  for (long i = 0; i < count; ++i) {
    long rest = i, offset = 0;
    bool inside = true;
    for (int a = 0; a < v.rank; ++a) {
      const long x = at[a] + rest % v.box[a];
      rest /= v.box[a];
      inside = inside && x >= 0 && x < v.extents[a];
      offset += x * (a == 0 ? v.element : v.strides[a]);
    }
    f(swizzled(shared + unsigned(i) * v.element, v.swizzle), inside ? v.base + offset : nullptr);
  }
}

inline float from_half(unsigned short h) { return static_cast<float>(bits_of<_Float16>(h)); }

// --- Products: rows from one descriptor, columns from the other, 16 terms ---
inline float operand(unsigned long long descriptor, int row, int k) {
  const unsigned base = (descriptor & 0x3fff) << 4, group = (descriptor >> 32 & 0x3fff) << 4;
  const int kind = int(descriptor >> 62), bytes = kind == 1 ? 128 : kind == 2 ? 64 : 32;
  const unsigned at = swizzled(base + row / 8 * group + row % 8 * bytes + k * 2, bytes);
  unsigned short h;
  std::memcpy(&h, shared_memory + at, 2);
  return from_half(h);
}
template <int N, class T, size_t... I>
void multiply(T operands, std::index_sequence<I...>) {
  float* sums[] = {&std::get<I>(operands)...};
  const unsigned long long x = std::get<N / 2>(operands), w = std::get<N / 2 + 1>(operands);
  const bool add = std::get<N / 2 + 2>(operands);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  for (int j = 0; j < N / 2; ++j) {
    const int row = 16 * warp + lane / 4 + j % 4 / 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
    double sum = add ? *sums[j] : 0;
    for (int k = 0; k < 16; ++k) sum += double{operand(x, row, k)} * operand(w, column, k);
    *sums[j] = static_cast<float>(sum);
  }
}

// --- A launch ---
inline void report() {
  for (unsigned i = 0; i < blockDim.x; ++i) {
    if (fibers[i].done || (i > 0 && !fibers[i - 1].done && fibers[i].waits == fibers[i - 1].waits)) continue;
    std::fprintf(stderr, "  thread %u waits for %s\n", i, fibers[i].waits);
  }
}
inline void run_block() {
  std::memset(shared_memory, 0xff, sizeof shared_memory);
  barriers.clear();
  whole_block = {};
  for (Meeting* m : {warps, named, warpgroups}) std::fill(m, m + (m == warps ? 64 : 16), Meeting{});
  for (unsigned i = 0; i < blockDim.x; ++i) {
    Fiber& f = fibers[i];
    f.stack.resize(128 << 10);
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
  auto all_done = [] {
    return std::all_of(fibers.begin(), fibers.begin() + blockDim.x, [](const Fiber& f) { return f.done; });
  };
  while (!all_done()) {
    progress = false;
    for (unsigned i = 0; i < blockDim.x; ++i) {
      current = order.last_thread_first ? blockDim.x - 1 - i : i;
      if (fibers[current].done) continue;
      threadIdx = {current, 0, 0};
      swapcontext(&scheduler, &fibers[current].context);
    }
    if (!progress) {
      report();
      fault("nobody can go on");
    }
  }
}
inline void launch(unsigned width, unsigned height, unsigned threads, std::function<void()> body) {
  kernel = std::move(body);
  gridDim = {width, height, 1};
  blockDim = {threads, 1, 1};
  fibers.resize(std::max<size_t>(fibers.size(), threads));
  for (unsigned y = 0; y < height; ++y) {
    for (unsigned x = 0; x < width; ++x) {
      blockIdx = {x, y, 0};
      run_block();
    }
  }
}

}  // namespace emulator

// --- What the text calls by CUDA's names ---
inline void __syncthreads() { emulator::whole_block.sync(blockDim.x, "the block"); }
inline void __syncwarp() { emulator::warps[threadIdx.x / 32].sync(32, "the warp"); }
template <class T>
T exchange(T x, int lane) {
  static T slots[64][32];
  const unsigned warp = threadIdx.x / 32, me = threadIdx.x % 32;
  slots[warp][me] = x;
  __syncwarp();
  const T other = slots[warp][lane];
  __syncwarp();
  return other;
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return exchange(x, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int distance) {
  return exchange(x, int(threadIdx.x % 32) ^ distance);
}
inline unsigned __ballot_sync(unsigned, bool x) {
  unsigned all = 0;
  for (int i = 0; i < 32; ++i) all |= unsigned{exchange(x, i)} << i;
  return all;
}
inline size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<const unsigned char*>(p) - emulator::shared_memory;
}

// --- Instructions ---
inline void ptx_cvt_f32_f16(float& y, unsigned short h) { y = emulator::from_half(h); }
inline void ptx_cvt_rn_f16_f32(unsigned short& h, float x) {
  h = bits_of<unsigned short>(static_cast<_Float16>(x));
}
inline void ptx_cvt_rn_bf16_f32(unsigned short& h, float x) {  // to the nearest, ties to even
  const unsigned bits = __float_as_uint(x);
  h = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void ptx_ex2_approx_ftz_f32(float& y, float x) { y = std::exp2(x); }
inline void ptx_rcp_approx_ftz_f32(float& y, float x) { y = 1.f / x; }
inline void ptx_max_NaN_f32(float& y, float a, float b) { y = a != a ? a : b != b ? b : a > b ? a : b; }
inline void ptx_min_NaN_f32(float& y, float a, float b) { y = a != a ? a : b != b ? b : a < b ? a : b; }

inline void ptx_mbarrier_init_shared_b64(unsigned at, int count) {
  emulator::barriers[at] = {count, count, 0, 0, {}};
}
inline void ptx_mbarrier_inval_shared_b64(unsigned at) {
  if (emulator::barriers.erase(at) == 0) emulator::fault("no barrier is there that could end");
}
inline void ptx_mbarrier_arrive_expect_tx_shared_b64(unsigned at, unsigned bytes) {
  emulator::Barrier& b = emulator::barriers.at(at);
  b.bytes += bytes;
  --b.pending;
  b.settle();
}
inline void ptx_mbarrier_arrive_shared_b64(unsigned at) {
  emulator::Barrier& b = emulator::barriers.at(at);
  --b.pending;
  b.settle();
}
inline void ptx_mbarrier_try_wait_parity_shared_b64(unsigned at, unsigned parity) {
  emulator::Barrier& b = emulator::barriers.at(at);
  emulator::deliver(b);
  while (b.phase == parity) {
    emulator::give_way("a barrier of shared memory");
    emulator::deliver(b);
  }
}
inline void ptx_bar_sync(int id, int threads = 128) { emulator::named[id].sync(threads, "a named barrier"); }
inline void ptx_bar_arrive(int id, int threads) { emulator::named[id].arrive(threads); }

inline void ptx_st_shared_u32(unsigned at) { std::memset(emulator::shared_memory + at, 0, 4); }
inline void ptx_st_shared_v4_f32(unsigned at, float a, float b, float c, float d) {
  const float all[] = {a, b, c, d};
  std::memcpy(emulator::shared_memory + at, all, 16);
}
inline void ptx_ld_volatile_shared_u32(unsigned& x, unsigned at) {
  std::memcpy(&x, emulator::shared_memory + at, 4);
}
inline void ptx_atom_acq_rel_cta_shared_inc_u32(unsigned& before, unsigned at, unsigned top) {
  std::memcpy(&before, emulator::shared_memory + at, 4);
  const unsigned after = before >= top ? 0 : before + 1;
  std::memcpy(emulator::shared_memory + at, &after, 4);
}

inline void ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(unsigned to,
                                                                                  const void* from,
                                                                                  unsigned bytes,
                                                                                  unsigned barrier) {
  if (to % 16 || reinterpret_cast<size_t>(from) % 16 || bytes % 16)
    emulator::fault("a bulk copy is not aligned to 16 bytes");
  std::memset(emulator::shared_memory + to, 0xff, bytes);
  emulator::copy(barrier, bytes, [=] { std::memcpy(emulator::shared_memory + to, from, bytes); });
}
template <class Map>
void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_tile_mbarrier__complete_tx__bytes(
    unsigned to, const Map* map, unsigned barrier, int first, int pair, int line, int part) {
  const auto& view = *reinterpret_cast<const emulator::TensorView*>(map->opaque[0]);
  if (to % 128) emulator::fault("a tensor copy is not aligned to 128 bytes");
  long bytes = view.element;
  for (int a = 0; a < view.rank; ++a) bytes *= view.box[a];
  std::memset(emulator::shared_memory + to, 0xff, bytes);
  emulator::copy(barrier, bytes, [=, &view] {
    const int at[] = {first, pair, first, line, part};
    emulator::each_element(view, to, at, [&](unsigned shared, const unsigned char* from) {
      if (from)
        std::memcpy(emulator::shared_memory + shared, from, view.element);
      else
        std::memset(emulator::shared_memory + shared, 0, view.element);
    });
  });
}
template <class Map>
void ptx_cp_async_bulk_tensor_4d_global_shared__cta_bulk_group_L2__cache_hint(const Map* map, unsigned from,
                                                                              int w, int h, int d,
                                                                              int channel,
                                                                              unsigned long long) {
  const auto& view = *reinterpret_cast<const emulator::TensorView*>(map->opaque[0]);
  const int at[] = {w, h, d, channel};
  emulator::each_element(view, from, at, [&](unsigned shared, unsigned char* to) {
    if (to) std::memcpy(to, emulator::shared_memory + shared, view.element);
  });
}

#define UPWEAVE_WGMMA(N)                                                                          \
  template <class... T>                                                                           \
  void ptx_wgmma_mma_async_sync_aligned_m64n##N##k16_f32_f16_f16(T&&... operands) {               \
    emulator::multiply<N>(std::forward_as_tuple(operands...), std::make_index_sequence<N / 2>()); \
  }
UPWEAVE_WGMMA(16)
UPWEAVE_WGMMA(32)
UPWEAVE_WGMMA(48)
UPWEAVE_WGMMA(64)
UPWEAVE_WGMMA(80)
UPWEAVE_WGMMA(96)
UPWEAVE_WGMMA(112)
UPWEAVE_WGMMA(128)
#undef UPWEAVE_WGMMA
// Its products are done, those of the other threads when they come here too.
inline void ptx_wgmma_wait_group_sync_aligned(int = 0) {
  emulator::warpgroups[threadIdx.x / 128].sync(128, "the warpgroup's products");
}

// Nothing to do: everything is in order here.
inline void ptx_wgmma_fence_sync_aligned() {}
inline void ptx_wgmma_commit_group_sync_aligned() {}
inline void ptx_fence_mbarrier_init_release_cluster() {}
inline void ptx_fence_proxy_async_shared__cta() {}
inline void ptx_cp_async_bulk_commit_group() {}
inline void ptx_cp_async_bulk_wait_group() {}
inline void ptx_cp_async_bulk_wait_group_read() {}
inline void ptx_griddepcontrol_wait() {}
inline void ptx_griddepcontrol_launch_dependents() {}
inline void ptx_createpolicy_fractional_L2__evict_first_b64(unsigned long long&) {}
inline void ptx_setmaxnreg_dec_sync_aligned_u32(int) {}
inline void ptx_setmaxnreg_inc_sync_aligned_u32(int) {}
