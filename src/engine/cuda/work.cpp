#include <algorithm>

#include "base/dtype.h"
#include "engine/cuda/fuse.h"
#include "graph/operation.h"
#include "graph/ops/conv_transpose.h"

// What kernels must do, counted while they are made: operations and bytes, for explain's prediction.
namespace upweave::cuda {
namespace {

// Seconds on an H200 of what goes value by value, fitted to the times of KernelBench's chains and of single
// convolutions at full size (docs/cuda.md, "explain"), which they reproduce within about a quarter.
constexpr double kElement = 2.8e-12;   // a value of a kernel of its own: coordinates by division, one load
constexpr double kWindow = 8e-12;      // the same of each value that a pool of its own reads
constexpr double kReduced = 1.5e-12;   // a value that a block reads to reduce it, each time it does
constexpr double kJoin = 0.84e-9;      // a block of up to 64 threads joins one number: barriers and shuffles
constexpr double kChannel = 60e-9;     // a channel of few voxels: nothing hides the load's latency
constexpr double kBoxByte = 0.65e-12;  // a byte of a box sum: taps read the same input again from the cache
constexpr double kPlainFlop = 0.25e-12;  // an operation of the convolution without tensor cores
constexpr double kOperand = 16e-12;      // an operand's value that an epilogue reads where its sums lie
constexpr double kSingleStore = 12e-12;  // an output that leaves by itself, one phase at a time
constexpr double kOddStore = 9e-12;      // the same of several phases, in rows that cannot be stored together
constexpr double kPairStore = 2.7e-12;   // two phases in one store, behind products
constexpr double kSweptVoxel = 83e-12;   // a voxel of a sweep, of few channels too: waits and stores

double bytes_of(const Lowering& l, Id id) {
  const int64_t size = l.source.places[id].element ? size_of(l.options.dtype) : 4;
  return static_cast<double>(count(l.graph[id].shape)) * static_cast<double>(size);
}

// Bytes that reading value `id` costs, and the operations of what is computed on the way: all of it once.
void read(const Lowering& l, Id id, Launch& work) {
  if (id == kNone) return;
  if (l.stored(id)) {
    work.bytes += bytes_of(l, id);
    return;
  }
  work.operations += flops(l.graph, id);
  for (const Id in : l.graph[id].in) read(l, in, work);
}

bool varies_in_space(const Shape& shape) {
  return std::any_of(shape.begin() + std::min<size_t>(2, shape.size()), shape.end(),
                     [](int64_t extent) { return extent > 1; });
}

// What a kernel of the general road takes beyond its bytes and operations.
double singly(const Lowering& l, Id id, const Launch& work) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const auto out = static_cast<double>(count(node.shape)), read = static_cast<double>(count(in));
  if (is_pointwise(node)) return out * kElement;
  if (is(node, Op::kConvTranspose)) return flops(l.graph, id) * kPlainFlop;
  if (is_pool(node)) {
    double window = 1;
    for (const int64_t extent : per_axis(node, "window", spatial_rank(in), 1))
      window *= static_cast<double>(extent);
    return out * window * kWindow;
  }
  const bool twice = is(node, Op::kMoments) || is(node, Op::kSoftmaxStats) || is(node, Op::kLogsumexp) ||
                     is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm) || is(node, Op::kSoftmax);
  const double sweeps = !twice ? 1 : out == read ? 3 : 2;
  if (node.attrs.has("axes") && node.attrs.word("axes") == "channel") {  // one thread a voxel
    const auto channels = static_cast<double>(in[1]);
    const double at_once = 256.0 * l.chip.multiprocessors;
    return sweeps * std::max(read * kReduced, std::min(1.0, at_once * channels / read) * channels * kChannel);
  }
  const double joins = (twice ? 2 : 1) * static_cast<double>(work.grid[0]);
  return sweeps * read * kReduced + joins * kJoin * std::max(1.0, work.block / 64.0);
}

// What a convolution's kernel takes for outputs and operands that go one by one.
double singly(const Lowering& l, const Fusion& f, const ConvTiles& t) {
  double seconds = 0;
  const int phases = f.store_phases * (t.swept ? 2 : 1);
  for (const Id id : f.stores) {
    const auto elements = static_cast<double>(count(l.graph[id].shape));
    if (f.behind_pool[id] || f.scalar[id] || l.source.places[id].blocked) continue;
    if (phases > 1 && l.graph[id].shape.back() % phases == 0) {
      seconds += t.held ? 0 : elements * kPairStore;
    } else {
      seconds += elements * (phases > 1 ? kOddStore : t.held ? 0 : kSingleStore);
    }
  }
  for (const Id id : f.nodes) {
    for (const Id in : l.graph[id].in) {
      if (id == f.conv || in == kNone || f.holds(in) || !varies_in_space(l.graph[in].shape)) continue;
      seconds += static_cast<double>(count(l.graph[in].shape)) * kOperand;
    }
  }
  const Shape& out = l.graph[f.conv].shape;
  const auto voxels = static_cast<double>(count(out)) / static_cast<double>(std::max<int64_t>(1, out[1]));
  return t.swept && !f.stores.empty() ? std::max(seconds, voxels * t.column_blocks * kSweptVoxel) : seconds;
}

}  // namespace

void note_work(Lowering& l, Id id) {
  Launch& work = l.out.run.back();
  if (is(l.graph[id], Op::kMeanConv)) {  // the sums are the kernel before it
    const Shape& kernel = l.graph[l.graph[id].in[1]].shape;
    const auto taps = static_cast<double>(count(kernel)) / static_cast<double>(kernel[0] * kernel[1]);
    Launch& sums = l.out.run[l.out.run.size() - 2];
    read(l, l.graph[id].in[0], sums);
    sums.singly = taps * sums.bytes * kBoxByte;
    work.bytes = bytes_of(l, l.graph[id].in[1]);
    return;
  }
  // Norms in one sweep are told by their own bytes and operations.
  if (!work.kernel.starts_with("norm_")) work.singly = singly(l, id, work);
  work.operations += flops(l.graph, id);
  work.bytes += bytes_of(l, id);
  for (const Id in : l.graph[id].in) {
    // Moments that share a kernel with what they normalise are nowhere in memory.
    if (in == kNone || (!l.stored(in) && is(l.graph[in], Op::kMoments))) continue;
    read(l, in, work);
  }
}

void note_conv_work(Lowering& l, const Fusion& f, const ConvTiles& t) {
  const std::string convert = fmt::format("convert_{}", l.convs - 1),
                    conv = fmt::format("conv_{}", l.convs - 1);
  const auto copy = static_cast<double>(t.copy_bytes() - t.spare * t.row_bytes() * t.copy_planes());
  size_t leg = 0;
  for (Launch& work : l.out.run) {
    if (work.kernel == convert) {
      work.bytes = copy;
      read(l, l.graph[f.conv].in[0], work);
    }
    if (work.kernel != conv) continue;
    work.bytes = copy + static_cast<double>(t.stream_bytes());
    work.overlaps = t.held;
    // Every row of every tile, useful or not, with each tap of each block of channels.
    work.products = 2.0 * t.row_steps() * t.n * t.column_blocks * t.ck * (1 + t.input_lo + t.weights_lo);
    for (const Id id : f.nodes) {
      if (id == f.conv) continue;
      work.operations += flops(l.graph, id);
      for (const Id in : l.graph[id].in) {
        if (in != kNone && !f.holds(in)) read(l, in, work);
      }
    }
    for (const Id id : f.stores) work.bytes += bytes_of(l, id);
    work.singly = singly(l, f, t);
    if (!t.by_line) continue;
    const double share = static_cast<double>(t.legs[leg].end - t.legs[leg].first) / t.tiles;
    for (double* part : {&work.products, &work.operations, &work.bytes, &work.singly}) *part *= share;
    ++leg;
  }
}

}  // namespace upweave::cuda
