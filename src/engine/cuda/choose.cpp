#include "engine/cuda/choose.h"

#include <algorithm>

#include "engine/cuda/schedule/depth_streaming.h"
#include "graph/operation.h"
#include "graph/ops/pools.h"

namespace upweave::cuda {
namespace {

Shape pool_window(const Node& node) { return pool_attrs(node).window; }

// The windows that the convolution's registers could take: the whole, if at most four positions of each phase
// are alive at once, or one stride of it, whose windows are made of one output of each phase.
std::vector<Shape> windows_here(const ConvGeometry& g, const Node& pool) {
  const Shape whole = pool_window(pool);
  std::vector<Shape> result;
  int64_t positions = 1;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (whole[a] % g.stride[a] != 0) return {};
    positions *= whole[a] / g.stride[a];
  }
  if (positions <= 4) result.push_back(whole);
  if (whole != g.stride && *std::ranges::max_element(g.stride) > 1) result.push_back(g.stride);
  return result;
}

// pool_mn = pool_m(pool_n): the first step in the convolution's registers, the second by itself. Returns the
// first.
Id split_pool(Lowering& l, Pass& pass, Id pool, const Shape& window) {
  Node first = l.graph[pool];
  const Shape whole = pool_window(first);
  if (whole == window) return pool;
  Shape rest = whole;
  first.attrs.set("window", window);
  first.attrs.erase("stride");
  const Shape& in = l.graph[first.in[0]].shape;
  for (size_t a = 0; a < window.size(); ++a) {
    rest[a] /= window[a];
    first.shape[a + 2] = l.graph[pool].shape[a + 2] * rest[a];  // what the second step drops is not needed
    if (first.shape[a + 2] > in[a + 2] / window[a])
      throw fail(Status::kInternal, "a pool's halves do not fit");
  }
  const Id id = l.graph.add(std::move(first));
  l.graph[pool].in[0] = id;
  l.graph[pool].attrs.set("window", rest);
  l.graph[pool].attrs.erase("stride");
  l.weights.push_back(false);
  l.source.places.emplace_back();
  pass.nodes.insert(std::ranges::find(pass.nodes, pool), id);
  return id;
}

// What a schedule must respect whatever joins the convolution.
EpilogueNeeds needs_of(const Lowering& l, const Node& conv) {
  const bool strict = l.options.precision == Precision::kStrict;
  EpilogueNeeds needs;
  // 16-bit inputs are fp16 numbers after scaling; what is computed before the convolution is not.
  needs.input_lo = strict && (l.options.dtype == Dtype::kF32 || !is_input(l.graph, conv.in[0]));
  needs.weights_lo = strict;
  needs.wgmma = l.chip.wgmma;
  needs.shared_limit = l.chip.shared_bytes - (4 << 10);  // columns' constants have the rest
  needs.multiprocessors = l.chip.multiprocessors;
  // Passes over the same operand share a copy, which all must be able to read: none may keep two numbers a
  // column.
  needs.own_copy = std::ranges::all_of(l.passes, [&](const Pass& other) {
    if (other.conv == kNone || l.graph[other.conv].in[0] != conv.in[0]) return true;
    const Fusion f = choose_fusion(l, other, kNone, true);
    return std::ranges::none_of(f.nodes, [&](Id id) {
      return f.reduction[id] && (is(l.graph[id], Op::kMoments) || is(l.graph[id], Op::kSoftmaxStats));
    });
  });
  return needs;
}

// What it must for this fusion too, whose pool has that window.
void add_needs(const Lowering& l, const Fusion& f, const ConvGeometry& geometry, const Shape& window,
               EpilogueNeeds& needs) {
  needs.pooled = f.pool != kNone;
  needs.pool = needs.rest = {1, 1, 1};
  for (size_t a = 0; a < geometry.spatial && needs.pooled; ++a) {
    const size_t axis = 3 - geometry.spatial + a;
    needs.pool[axis] = static_cast<int>(window[a]);
    needs.rest[axis] = static_cast<int>(pool_window(l.graph[f.pool])[a] / window[a]);
  }
  needs.whole_columns = f.whole_columns;
  needs.one_sample = f.one_sample;
  needs.store_phases = f.store_phases;
  needs.all_outputs = f.all_outputs;
  needs.reduces = std::ranges::find(f.reduction, true) != f.reduction.end();
  needs.mixes_samples = needs.pooled;
  needs.pool_leaves = needs.pooled && f.stores == std::vector<Id>{f.pool} &&
                      (!is_output(l.graph, f.pool) || l.options.dtype == Dtype::kF32);
  for (const Id id : f.nodes) {
    if (f.reduction[id])  // others keep numbers in registers for each column
      needs.mixes_samples =
          needs.mixes_samples && is(l.graph[id], Op::kMoments) && l.graph[id].in[0] == f.conv;
    else if (f.behind_pool[id] && id != f.pool)
      needs.pool_leaves = false;
  }
  for (const Id id : f.stores) needs.mixes_samples = needs.mixes_samples && f.behind_pool[id];
  needs.stores = !f.stores.empty();
  needs.float_rows = f.stores == std::vector<Id>{l.graph.output} && l.options.dtype == Dtype::kF32 &&
                     !f.scalar[l.graph.output] && geometry.out.back() % 4 == 0;
}

}  // namespace

// With the pool, without; with reductions over space, without; at last the convolution alone.
std::unique_ptr<Schedule> choose_fusion_and_schedule(Lowering& l, Pass& pass, Fusion& fusion,
                                                     std::string& why) {
  const ConvGeometry geometry = conv_geometry(l.graph, l.graph[pass.conv]);
  EpilogueNeeds needs = needs_of(l, l.graph[pass.conv]);
  auto schedule_for = [&](const Pass& part, Id pool, const Shape& window,
                          bool over_space) -> std::unique_ptr<Schedule> {
    fusion = choose_fusion(l, part, pool, over_space);
    if (pool != kNone && !fusion.holds(pool)) return nullptr;
    add_needs(l, fusion, geometry, window, needs);
    // Depth streaming has both phases of the width at hand, even if nothing is stored.
    if (needs.own_copy && needs.reduces && !needs.pooled && geometry.stride.back() == 2 &&
        fusion.store_phases == 1) {
      needs.store_phases = fusion.store_phases = 2;
      std::unique_ptr<Schedule> both = choose_schedule(geometry, needs, why);
      if (dynamic_cast<const DepthStreaming*>(both.get())) return both;
      needs.store_phases = fusion.store_phases = 1;
    }
    return choose_schedule(geometry, needs, why);
  };
  // The pool that may join, if there is one: its whole window, then one stride of it, then none.
  Id pool = kNone;
  for (const Id id : pass.nodes) {
    if (pool == kNone && is_pool(l.graph[id]) && pool_attrs(l.graph[id]).tiles() &&
        !ancestors(l.graph, pass)[id])
      pool = id;
  }
  const std::vector<Shape> windows =
      pool == kNone ? std::vector<Shape>{} : windows_here(geometry, l.graph[pool]);
  for (const bool over_space : {true, false}) {
    for (const Shape& window : windows) {
      std::unique_ptr<Schedule> schedule = schedule_for(pass, pool, window, over_space);
      if (!schedule) continue;
      const std::array<int, 3> combine = schedule->combine();
      Shape here = window;  // what leaves a tile
      for (size_t a = 0; a < geometry.spatial; ++a) here[a] *= combine[3 + a - geometry.spatial];
      pool = split_pool(l, pass, pool, here);
      fusion = choose_fusion(l, pass, pool, over_space, combine[1] * combine[2] > 1);
      return schedule;
    }
    if (auto schedule = schedule_for(pass, kNone, {}, over_space)) return schedule;
  }
  Pass alone;
  alone.nodes = alone.writes = {pass.conv};
  alone.conv = pass.conv;
  return schedule_for(alone, kNone, {}, false);
}

}  // namespace upweave::cuda
