#include "base/dtype.h"
#include "engine/cuda/fuse.h"

// What kernels must do, counted while they are made: operations and bytes, for explain's prediction.
namespace upweave::cuda {
namespace {

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

}  // namespace

void note_work(Lowering& l, Id id) {
  Launch& work = l.out.run.back();
  work.operations += flops(l.graph, id);
  work.bytes += bytes_of(l, id);
  for (const Id in : l.graph[id].in) {
    // Moments that share a kernel with what they normalise are nowhere in memory.
    if (in == kNone || (!l.stored(in) && is(l.graph[in], "moments"))) continue;
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
    if (!t.by_line) continue;
    const double share = static_cast<double>(t.legs[leg].end - t.legs[leg].first) / t.tiles;
    for (double* part : {&work.products, &work.operations, &work.bytes}) *part *= share;
    ++leg;
  }
}

}  // namespace upweave::cuda
