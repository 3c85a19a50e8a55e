#include <algorithm>
#include <utility>

#include "base/dtype.h"
#include "engine/cuda/co_schedule.h"
#include "engine/cuda/schedule/depth_streaming.h"
#include "engine/cuda/schedule/tile_text.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

namespace upweave::cuda {
namespace {

Shape pool_window(const Node& node) { return per_axis(node, "window", spatial_rank(node.shape), 1); }

bool tiles_space(const Node& node) {
  return !node.attrs.has("stride") ||
         per_axis(node, "stride", spatial_rank(node.shape), 1) == pool_window(node);
}

// The windows that the convolution's registers could take: the whole, if at most four variants of each phase
// are alive at once, or one stride of it, whose windows are made of one output of each phase.
std::vector<Shape> windows_here(const ConvGeometry& g, const Node& pool) {
  const Shape whole = pool_window(pool);
  std::vector<Shape> result;
  int64_t variants = 1;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (whole[a] % g.stride[a] != 0) return {};
    variants *= whole[a] / g.stride[a];
  }
  if (variants <= 4) result.push_back(whole);
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

// Everything of the pass that the convolution reads, directly or not.
std::vector<bool> ancestors(const Graph& graph, const Pass& pass) {
  std::vector<bool> head(graph.nodes.size(), false);
  head[pass.conv] = true;
  for (auto it = pass.nodes.rbegin(); it != pass.nodes.rend(); ++it) {
    if (!head[*it]) continue;
    for (const Id in : graph[*it].in) {
      if (in != kNone) head[in] = true;
    }
  }
  head[pass.conv] = false;
  return head;
}

// Where the fp16 copy of `x` and the packed `kernel` lie: places of their own, or those of an earlier pass
// whose tiles read the same rows and the same stream.
Prepared prepare(Lowering& l, const Schedule& t, Id x, Id kernel) {
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", x, kernel, t.copy.plane, t.copy.guard, t.conv.ck, t.conv.n,
                  t.conv.column_blocks, t.conv.steps.size(), static_cast<int>(t.copy_order()));
  for (const Axis& a : t.conv.axis) key += fmt::format(" {} {} {}", a.in, a.pitch, a.f);
  if (const auto ready = l.prepared.find(key); ready != l.prepared.end()) {
    Prepared again = ready->second;
    again.fresh = false;
    return again;
  }
  Prepared p;
  p.copy = l.reserve(t.copy_bytes());
  p.scale = l.reserve(32);
  p.extremes = l.reserve(int64_t{t.convert_blocks()} * 8);
  p.stream = l.reserve_packed(t.conv.stream_bytes());
  p.weight_scale = l.reserve_packed(32);
  p.weight_extremes = l.reserve_packed(t.conv.weight_columns() * 8);
  return l.prepared[key] = p;
}

// The pre-pass of the input, launched by every run, and the packing of the kernel.
void convert_and_pack(Lowering& l, const Schedule& t, const std::string& g, int index, Id x, Id kernel) {
  const Convolution& conv = t.conv;
  const bool by_line = t.copy_order() == CopyOrder::kByLine;
  auto kernel_of = [&](const char* name, int64_t blocks, unsigned block, const std::string& body) {
    return l.kernel(fmt::format("{}_{}", name, index), body, blocks, block, 1);
  };
  const std::string value = input_value(l, x, by_line ? Mapped::kInput : Mapped::kNo),
                    weight = input_value(l, kernel, by_line ? Mapped::kKernel : Mapped::kNo);
  const unsigned blocks = t.convert_blocks();
  const unsigned few = static_cast<unsigned>(l.chip.multiprocessors) * 4;  // usually they find nothing to do
  const int chunks_of_warp =
      std::min(l.options.dtype == Dtype::kF32 ? 4 : 2, conv.ck / 8);  // rows fill sectors
  auto convert_rows = [&](bool first) {
    return fmt::format("convert_rows<{}, {}>(a, {}, {});", g, chunks_of_warp, value, first);
  };
  Launch convert = kernel_of("convert", blocks, 256, convert_rows(true));
  convert.work = convert_work(l, x, t);
  l.run(std::move(convert));
  l.run(kernel_of(
      "choose", 1, 1024,
      fmt::format("choose_scale((const uint2*)(a.ws + {0}::kExtremes), {1}, (Scale*)(a.ws + {0}::kScale), "
                  "{0}::kGuess, true, {0}::kLo);",
                  g, blocks)));
  l.run(kernel_of("rescale", std::min(few, blocks), 256, convert_rows(false)));
  const int64_t columns = conv.weight_columns();
  const int64_t chunks =
      static_cast<int64_t>(conv.steps.size()) * conv.column_blocks * conv.n * (conv.ck / 8);
  l.out.pack.push_back(kernel_of("weight_extremes", (columns + 255) / 256, 256,
                                 fmt::format("weight_extremes<{}>(a, {});", g, weight)));
  l.out.pack.push_back(
      kernel_of("weight_choose", 1, 1024,
                fmt::format("choose_scale((const uint2*)(a.packed + {0}::kWeightExtremes), {1}, "
                            "(Scale*)(a.packed + {0}::kWeightScale), 0, false, {2});",
                            g, columns, t.one_scale() ? 0 : 11)));
  l.out.pack.push_back(
      kernel_of("pack", (chunks + 255) / 256, 256,
                fmt::format("pack_weights<{0}>(a, (const int(*)[3]){0}_stream, {1});", g, weight)));
}

// What a schedule must respect whatever joins the convolution.
EpilogueNeeds needs_of(const Lowering& l, const Node& conv) {
  const bool strict = l.options.precision == Precision::kStrict;
  EpilogueNeeds needs;
  // 16-bit inputs are fp16 numbers after scaling; what is computed before the convolution is not.
  needs.input_lo = strict && (l.options.dtype == Dtype::kF32 || conv.in[0] != 0);
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
      return f.reduction[id] && (is(l.graph[id], "moments") || is(l.graph[id], "softmax_stats"));
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
      needs.mixes_samples = needs.mixes_samples && is(l.graph[id], "moments") && l.graph[id].in[0] == f.conv;
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
    if (pool == kNone && is_pool(l.graph[id]) && tiles_space(l.graph[id]) && !ancestors(l.graph, pass)[id])
      pool = id;
  }
  const std::vector<Shape> windows =
      pool == kNone ? std::vector<Shape>{} : windows_here(geometry, l.graph[pool]);
  for (const bool over_space : {true, false}) {
    for (const Shape& window : windows) {
      std::unique_ptr<Schedule> schedule = schedule_for(pass, pool, window, over_space);
      if (!schedule) continue;
      const std::array<int, 3> join = schedule->join();
      Shape here = window;  // what leaves a tile
      for (size_t a = 0; a < geometry.spatial; ++a) here[a] *= join[3 + a - geometry.spatial];
      pool = split_pool(l, pass, pool, here);
      fusion = choose_fusion(l, pass, pool, over_space, join[1] * join[2] > 1);
      return schedule;
    }
    if (auto schedule = schedule_for(pass, kNone, {}, over_space)) return schedule;
  }
  Pass alone;
  alone.nodes = alone.writes = {pass.conv};
  alone.conv = pass.conv;
  return schedule_for(alone, kNone, {}, false);
}

namespace {

// What comes before the convolution: computed where it is read if it can be.
void lower_head(Lowering& l, const Pass& pass, std::vector<bool>& done) {
  const std::vector<bool> head = ancestors(l.graph, pass);
  for (const Id id : pass.nodes) {
    if (!head[id] || l.stored(id)) continue;
    if (computable(l.graph[id])) {
      l.source.places[id].kind = Location::Kind::kInline;
    } else {
      lower_alone(l, id);
    }
    done[id] = true;
  }
}

// Places for what the convolution's kernel stores; `g` is the name of its tiles.
void keep_stores(Lowering& l, const Fusion& fusion, Schedule& schedule, const std::string& g) {
  const Convolution& conv = schedule.conv;
  // Nobody else reads the copy.
  const bool alone = std::ranges::count_if(l.passes, [](const Pass& p) { return p.conv != kNone; }) == 1;
  for (const Id id : fusion.stores) {
    // Blocks of channels only of values behind a pool, for others are stored phase beside phase.
    const bool behind = schedule.stores_blocks() && !is_output(l.graph, id) && !fusion.scalar[id];
    const Id norm = behind && conv.n * conv.column_blocks == conv.c_out ? norm_of_blocks(l, id) : kNone;
    Location& place = l.source.places[id];
    if (norm == l.graph.output && l.options.dtype != Dtype::kF32 && fusion.stores.size() == 1 && alone &&
        schedule.divide(l.graph[id].shape[2], l.graph[id].shape[3])) {
      place = {Location::Kind::kOutput, 0, false, true, g};
    } else {
      l.keep(id);
      place.blocked = norm != kNone && (!place.element || l.options.dtype == Dtype::kF32);
    }
    if (place.blocked && place.kind == Location::Kind::kOutput) l.out.output_alignment = 16;
  }
}

// A kernel of convolution `k`, and its launch.
struct ConvLaunch {
  const char* name;
  int resident, blocks, block, shared;
  const char *parameters = "", *begin = "await_previous();";
};
Launch conv_launch(Lowering& l, const ConvKernel& k, const ConvLaunch& c, const std::string& text) {
  const std::string full = fmt::format("{}_{}", c.name, k.index);
  const auto threads = static_cast<unsigned>(c.block);
  l.write_kernel(full, threads, static_cast<unsigned>(c.resident), text, c.parameters, c.begin);
  return {full,
          {static_cast<unsigned>(c.blocks), static_cast<unsigned>(k.schedule->conv.column_blocks)},
          threads,
          static_cast<unsigned>(c.shared)};
}

// The convolution on tensor cores.
std::vector<Launch> tensor_launches(Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  const KernelForm form = t.kernel_form();
  const Launch one = conv_launch(l, k,
                                 {"conv", t.resident, form.blocks, (t.warpgroups + form.producer) * 128,
                                  t.shared_bytes(), form.parameters, form.begin},
                                 t.kernel_text(l, k.fusion, k.text, k.name(), false));
  return t.launches(one, conv_work(l, k.fusion, t), k.prepared);
}

// The same in float32, where fp16 cannot hold the data. It has no TMA at hand.
Launch fma_launch(Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  EpilogueForm form = t.epilogue_form();
  const bool staged = std::exchange(form.staged, false);
  return conv_launch(
      l, k, {"conv_fma", 1, t.fma_blocks(l.chip.multiprocessors), t.warpgroups * 128, t.fma_shared()},
      t.kernel_text(l, k.fusion, staged ? epilogue(l, k.fusion, t, form) : k.text, k.name(), true));
}

// Windows whose tiles left parts of them.
Launch join_launch(Lowering& l, const ConvKernel& k) {
  return conv_launch(
      l, k, {"join", 0, k.text.join_blocks, k.schedule->warpgroups * 128, 0},
      fmt::format("  typedef {} G;\n  if (((const Scale*)(a.ws + G::kScale))->other_path | ((const "
                  "Scale*)(a.packed + G::kWeightScale))->other_path) return;\n{}",
                  k.name(), k.text.join));
}

std::string conv_note(const Lowering& l, const ConvKernel& k) {
  const Schedule& t = *k.schedule;
  std::vector<std::string> names;
  for (const Id id : k.fusion.nodes) names.emplace_back(l.graph[id].op->name);
  return fmt::format(
      "kernel conv_{}: {} | {} rows x {} columns, {} warpgroups, {} products{}, {} KB of shared memory, {} "
      "tiles, {:.0f}% of rows useful{}",
      k.index, fmt::join(names, " | "), t.m, t.conv.n, t.warpgroups, t.conv.products(),
      l.chip.wgmma ? " by wgmma" : " by mma.sync", t.shared_bytes() >> 10, t.tiles, 100 * t.efficiency(),
      t.note());
}

// Gives the convolution's values their places, and writes down what its kernels are made of: constants,
// products, the kernels that prepare its operands unless an earlier pass has, and the epilogue.
ConvKernel prepare_kernel(Lowering& l, const Pass& pass, Fusion fusion, std::unique_ptr<Schedule> schedule) {
  ConvKernel k{std::move(fusion), std::move(schedule), {}, {}, l.convs++};
  Schedule& t = *k.schedule;
  const Id x = l.graph[pass.conv].in[0], kernel = l.graph[pass.conv].in[1];
  const std::string g = k.name();
  keep_stores(l, k.fusion, t, g);
  k.prepared = prepare(l, t, x, kernel);
  l.kernels += t.constants_text(g, k.prepared) + t.products_text(g);
  for (const Id id : k.fusion.stores) {  // named by inlined values, even if no kernel calls them
    if (l.source.places[id].divided.empty()) continue;
    l.kernels += fmt::format(
        "DEVICE float v{}(const Args& a, const At& i) {{ return load<float>(divided_at<{}>(a, i.x[0], i.x[1] "
        "/ 16, i.x[2]), i.x[3] * 16 + i.x[1] % 16); }}\n",
        id, g);
  }
  if (k.prepared.fresh) convert_and_pack(l, t, g, k.index, x, kernel);
  k.text = epilogue(l, k.fusion, t, t.epilogue_form());
  return k;
}

void finish(Lowering& l, const ConvKernel& k, std::vector<bool>& done) {
  for (const Id id : k.fusion.nodes) done[id] = true;
  l.out.notes.push_back(conv_note(l, k));
}

}  // namespace

size_t lower_conv(Lowering& l, size_t p, std::vector<bool>& done, std::string& why) {
  Pass& pass = l.passes[p];
  if (l.chip.major < 8) return why = "the chip is older than sm_80", 0;
  if (l.graph[pass.conv].in[2] != kNone) return why = "the convolution still has its bias", 0;
  Fusion fusion;
  std::unique_ptr<Schedule> schedule = choose_fusion_and_schedule(l, pass, fusion, why);
  if (!schedule) return 0;
  done.resize(l.graph.nodes.size(), false);  // a pool may be two now
  if (schedule->conv.steps.size() * (schedule->conv.variants * 4 + 3) > 12000)
    return why = "its taps overflow the constant tables", 0;
  lower_head(l, pass, done);
  std::optional<CoSchedule> both = co_schedule(l, p, fusion, *schedule);
  const ConvKernel k = prepare_kernel(l, pass, std::move(fusion), std::move(schedule));
  if (!both) {
    for (Launch& launch : tensor_launches(l, k)) l.run(std::move(launch));
    l.run(fma_launch(l, k));
    if (!k.text.join.empty()) l.run(join_launch(l, k));
    for (Launch& launch : combine_reductions(l, k)) l.run(std::move(launch));
    finish(l, k, done);
    return 1;
  }
  l.run(fma_launch(l, k));
  const std::vector<Launch> combine = combine_reductions(l, k);
  finish(l, k, done);
  lower_head(l, l.passes[p + 1], done);
  const ConvKernel second =
      prepare_kernel(l, l.passes[p + 1], std::move(both->fusion), std::move(both->schedule));
  Launch last = fma_launch(l, second);
  finish(l, second, done);
  for (Launch& launch : co_scheduled_launches(l, k, second, both->launches, combine))
    l.run(std::move(launch));
  l.run(std::move(last));
  return 2;
}

// Reductions over `axes`, and those that join values two by two.
static bool over(const Node& node, const char* axes) {
  return node.attrs.has("axes") && node.attrs.word("axes") == axes;
}
static bool joins_values(const Node& node) {
  return is(node, "sum") || is(node, "mean") || is(node, "max") || is(node, "min");
}

// Whether `id` can follow `last` where whole lines leave their windows one by one: nobody else reads `last`,
// and it takes one value to another, or reduces values that are there for every channel over them.
static bool follows_windows(const Graph& graph, const Pass& pass, const Fusion& f, Id last, Id id) {
  const Node& node = graph[id];
  if (node.in[0] != last || f.scalar[last] || last == graph.output ||
      std::ranges::find(pass.writes, last) != pass.writes.end() ||
      std::any_of(node.in.begin() + 1, node.in.end(), [&](Id in) { return f.holds(in); }) ||
      std::ranges::any_of(pass.nodes, [&](Id reader) {
        return reader != id && std::ranges::find(graph[reader].in, last) != graph[reader].in.end();
      }))
    return false;
  if (is_pointwise(node)) return node.shape == graph[last].shape;
  return over(node, "channel") && joins_values(node);
}

Fusion choose_fusion(const Lowering& l, const Pass& pass, Id pool, bool over_space, bool whole_lines) {
  const Graph& graph = l.graph;
  Fusion f;
  f.conv = pass.conv;
  f.pool = pool;
  f.here.assign(graph.nodes.size(), false);
  f.behind_pool = f.scalar = f.reduction = f.here;
  const std::vector<bool> head = ancestors(graph, pass);
  for (const Id id : pass.nodes) {
    const Node& node = graph[id];
    if (head[id]) continue;
    if (id == pass.conv) {
      f.here[id] = true;
      f.nodes.push_back(id);
      continue;
    }
    // Operands: registers, parameters, or values that are in memory already.
    bool possible = true, any = false, behind = false, scalars = true;
    for (size_t s = 0; s < node.in.size(); ++s) {
      const Id in = node.in[s];
      if (in == kNone || l.weights[in]) continue;
      if (f.holds(in) && !f.reduction[in]) {
        if (any && f.behind_pool[in] != behind) possible = false;
        any = true;
        behind = f.behind_pool[in];
        scalars = scalars && f.scalar[in];
      } else {
        possible = possible && l.stored(in) && s > 0;
        scalars = scalars && graph[in].shape[1] == 1;
      }
    }
    if (!possible || !f.holds(node.in[0])) continue;
    if (behind && whole_lines && !follows_windows(graph, pass, f, f.last, id)) continue;
    bool reduction = false, scalar = scalars;
    if (is_pointwise(node)) {
      if (node.shape[1] != 1) scalar = false;
    } else if (id == pool) {
      if (behind || scalars) continue;
      behind = true;
      scalar = false;
    } else if (over(node, "channel") && !scalars && node.in[0] != kNone && !is(node, "softmax_stats")) {
      f.whole_columns = true;
      scalar = joins_values(node) || is(node, "logsumexp");
    } else if (over_space && !scalars &&
               (is(node, "moments") ||
                (over(node, "space") && (joins_values(node) || is(node, "softmax_stats"))))) {
      reduction = true;
      if (!(is(node, "moments") && node.attrs.word("axes") == "batch")) f.one_sample = true;
    } else {
      continue;
    }
    if (scalar && !reduction) f.whole_columns = true;
    f.here[id] = true;
    f.behind_pool[id] = behind;
    f.scalar[id] = scalar && !reduction;
    if (behind) f.last = id;
    f.reduction[id] = reduction;
    f.nodes.push_back(id);
  }
  // What leaves: the output, what the plan wants in memory, and operands of nodes that did not join.
  bool points = false;
  for (const Id id : f.nodes) {
    if (f.reduction[id]) continue;
    bool leaves = id == graph.output || std::ranges::find(pass.writes, id) != pass.writes.end();
    for (const Id reader : pass.nodes) {
      if (f.here[reader] || head[reader]) continue;
      leaves = leaves || std::ranges::find(graph[reader].in, id) != graph[reader].in.end();
    }
    if (!leaves) continue;
    f.stores.push_back(id);
    points = points || !f.behind_pool[id];
  }
  f.all_outputs = points;
  for (const Id id : f.nodes) f.all_outputs = f.all_outputs || (f.reduction[id] && !f.behind_pool[id]);
  const ConvGeometry g = conv_geometry(graph, graph[pass.conv]);
  const auto stride = g.stride.back();
  f.store_phases = points && pool == kNone && (stride == 2 || stride == 4) ? static_cast<int>(stride) : 1;
  return f;
}

}  // namespace upweave::cuda
