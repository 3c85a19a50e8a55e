#include "engine/cuda/work.h"

#include <algorithm>

#include "base/dtype.h"
#include "engine/cuda/cost.h"
#include "graph/operation.h"
#include "graph/ops/conv.h"
#include "graph/ops/conv_transpose.h"
#include "graph/ops/pools.h"

namespace upweave::cuda {
namespace {

double bytes_of(const Lowering& l, Id id) {
  const int64_t size = l.source.places[id].element ? size_of(l.options.dtype) : 4;
  return static_cast<double>(count(l.graph[id].shape)) * static_cast<double>(size);
}

// Bytes that reading value `id` costs, and the operations of what is computed on the way: all of it once.
void read(const Lowering& l, Id id, Work& work) {
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
double value_seconds(const Lowering& l, Id id, const Launch& launch) {
  const Node& node = l.graph[id];
  const Shape& in = l.graph[node.in[0]].shape;
  const auto out = static_cast<double>(count(node.shape)), read = static_cast<double>(count(in));
  if (is_pointwise(node) || is(node, Family::kMove)) return out * kElement;
  if (is(node, Op::kConvTranspose) || is_plain_conv(node)) return flops(l.graph, id) * kPlainFlop;
  if (is_pool(node)) {
    double window = 1;
    for (const int64_t extent : pool_attrs(node).window) window *= static_cast<double>(extent);
    return out * window * kWindow;
  }
  const bool twice = is(node, Op::kMoments) || is(node, Op::kSoftmaxStats) || is(node, Op::kLogsumexp) ||
                     is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm) || is(node, Op::kSoftmax);
  const double reads = !twice ? 1 : out == read ? 3 : 2;
  if (node.attrs.has("axes") && node.attrs.word("axes") == "channel") {  // one thread a voxel
    const auto channels = static_cast<double>(in[1]);
    const double at_once = 256.0 * l.chip.multiprocessors;
    return reads *
           std::max(read * kReducedValue, std::min(1.0, at_once * channels / read) * channels * kChannel);
  }
  const double combines = (twice ? 2 : 1) * static_cast<double>(launch.grid[0]);
  return reads * read * kReducedValue + combines * kCombine * std::max(1.0, launch.block / 64.0);
}

// What a convolution's kernel takes for outputs and operands that go one by one.
double value_seconds(const Lowering& l, const Fusion& f, const Schedule& t) {
  double seconds = 0;
  const int phases = f.store_phases * t.epilogue_form().windows;
  for (const Id id : f.stores) {
    const auto elements = static_cast<double>(count(l.graph[id].shape));
    if (f.behind_pool[id] || f.scalar[id] || l.source.places[id].blocked) continue;
    if (phases > 1 && l.graph[id].shape.back() % phases == 0) {
      seconds += t.overlaps() ? 0 : elements * kPairStore;
    } else {
      seconds += elements * (phases > 1 ? kOddStore : t.overlaps() ? 0 : kSingleStore);
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
  const double least = f.stores.empty() ? 0 : voxels * t.conv.column_blocks * t.seconds_a_voxel();
  return std::max(seconds, least);
}

}  // namespace

void Work::add(const Work& other, double share) {
  overlaps |= other.overlaps;
  products += other.products * share;
  operations += other.operations * share;
  bytes += other.bytes * share;
  value_seconds += other.value_seconds * share;
}

void note_work(Lowering& l, Id id, LaunchId launch) {
  l.out.run[launch].work.value_seconds = value_seconds(l, id, l.out.run[launch]);
  note_norm_work(l, id, launch);
}

// Norms in one kernel are told by their own bytes and operations.
void note_norm_work(Lowering& l, Id id, LaunchId launch) {
  Work& work = l.out.run[launch].work;
  work.operations += flops(l.graph, id);
  work.bytes += bytes_of(l, id);
  for (const Id in : l.graph[id].in) {
    // Moments that share a kernel with what they normalise are nowhere in memory.
    if (in == kNone || (!l.stored(in) && is(l.graph[in], Op::kMoments))) continue;
    read(l, in, work);
  }
}

void note_mean_conv_work(Lowering& l, Id id, LaunchId sums, LaunchId products) {
  const Shape& kernel = l.graph[l.graph[id].in[1]].shape;
  const auto taps = static_cast<double>(count(kernel)) / static_cast<double>(kernel[0] * kernel[1]);
  Work& work = l.out.run[sums].work;
  read(l, l.graph[id].in[0], work);
  work.value_seconds = taps * work.bytes * kBoxByte;
  l.out.run[products].work.bytes = bytes_of(l, l.graph[id].in[1]);
}

static double copied_bytes(const Schedule& t) {
  return static_cast<double>(t.copy_bytes() - t.copy.spare * t.conv.row_bytes() * t.conv.copy_planes());
}

Work convert_work(const Lowering& l, Id input, const Schedule& t) {
  Work work;
  work.bytes = copied_bytes(t);
  read(l, input, work);
  return work;
}

Work conv_work(const Lowering& l, const Fusion& f, const Schedule& t) {
  Work work;
  work.bytes = copied_bytes(t) + static_cast<double>(t.conv.stream_bytes());
  work.overlaps = t.overlaps();
  // Every row of every tile, useful or not, with each tap of each block of channels.
  work.products = 2.0 * t.row_steps() * t.conv.n * t.conv.column_blocks * t.conv.ck * t.conv.products();
  for (const Id id : f.nodes) {
    if (id == f.conv) continue;
    work.operations += flops(l.graph, id);
    for (const Id in : l.graph[id].in) {
      if (in != kNone && !f.holds(in)) read(l, in, work);
    }
  }
  for (const Id id : f.stores) work.bytes += bytes_of(l, id);
  work.value_seconds = value_seconds(l, f, t);
  return work;
}

}  // namespace upweave::cuda
