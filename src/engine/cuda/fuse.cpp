#include "engine/cuda/fuse.h"

#include <algorithm>

#include "base/dtype.h"
#include "engine/cuda/conv_text.h"
#include "engine/cuda/relay.h"
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
Prepared prepare(Lowering& l, const ConvTiles& t, Id x, Id kernel) {
  std::string key = fmt::format("{} {} {} {} {} {} {} {} {}", x, kernel, t.plane, t.guard, t.ck, t.n,
                                t.column_blocks, t.steps.size(), t.by_line + 2 * t.swept);
  for (const Axis& a : t.axis) key += fmt::format(" {} {} {}", a.in, a.pitch, a.f);
  if (const auto ready = l.prepared.find(key); ready != l.prepared.end()) {
    Prepared again = ready->second;
    again.fresh = false;
    return again;
  }
  Prepared p;
  p.copy = l.reserve(t.copy_bytes());
  p.scale = l.reserve(32);
  p.extremes = l.reserve(int64_t{convert_blocks(t)} * 8);
  p.stream = l.reserve_packed(t.stream_bytes());
  p.weight_scale = l.reserve_packed(32);
  p.weight_extremes = l.reserve_packed(weight_columns(t) * 8);
  return l.prepared[key] = p;
}

// The pre-pass of the input, launched by every run, and the packing of the kernel.
void convert_and_pack(Lowering& l, const ConvTiles& t, const std::string& g, int index, Id x, Id kernel) {
  auto kernel_of = [&](std::vector<Launch>& list, const char* name, int64_t blocks, unsigned block,
                       const std::string& body) {
    const std::string full = fmt::format("{}_{}", name, index);
    l.write_kernel(full, block, 1, body);
    list.push_back({full, {static_cast<unsigned>(blocks), 1}, block, 0});
  };
  const std::string value = input_value(l, x, t.by_line ? Mapped::kInput : Mapped::kNo),
                    weight = input_value(l, kernel, t.by_line ? Mapped::kKernel : Mapped::kNo);
  const unsigned blocks = convert_blocks(t);
  const unsigned few = static_cast<unsigned>(l.chip.multiprocessors) * 4;  // usually they find nothing to do
  const int chunks_of_warp = std::min(l.options.dtype == Dtype::kF32 ? 4 : 2, t.ck / 8);  // rows fill sectors
  auto convert_rows = [&](bool first) {
    return fmt::format("convert_rows<{}, {}>(a, {}, {});", g, chunks_of_warp, value, first);
  };
  kernel_of(l.out.run, "convert", blocks, 256, convert_rows(true));
  kernel_of(
      l.out.run, "choose", 1, 1024,
      fmt::format("choose_scale((const uint2*)(a.ws + {0}::kExtremes), {1}, (Scale*)(a.ws + {0}::kScale), "
                  "{0}::kGuess, true, {0}::kLo);",
                  g, blocks));
  kernel_of(l.out.run, "rescale", std::min(few, blocks), 256, convert_rows(false));
  const int64_t columns = weight_columns(t);
  const int64_t chunks = static_cast<int64_t>(t.steps.size()) * t.column_blocks * t.n * (t.ck / 8);
  kernel_of(l.out.pack, "weight_extremes", (columns + 255) / 256, 256,
            fmt::format("weight_extremes<{}>(a, {});", g, weight));
  kernel_of(l.out.pack, "weight_choose", 1, 1024,
            fmt::format("choose_scale((const uint2*)(a.packed + {0}::kWeightExtremes), {1}, "
                        "(Scale*)(a.packed + {0}::kWeightScale), 0, false, {2});",
                        g, columns, t.one_scale() ? 0 : 11));
  kernel_of(l.out.pack, "pack", (chunks + 255) / 256, 256,
            fmt::format("pack_weights<{0}>(a, (const int(*)[3]){0}_stream, {1});", g, weight));
}

// What a tiling must respect whatever joins the convolution.
TileWish wish_of(const Lowering& l, const Node& conv) {
  const bool strict = l.options.precision == Precision::kStrict;
  TileWish wish;
  // 16-bit inputs are fp16 numbers after scaling; what is computed before the convolution is not.
  wish.input_lo = strict && (l.options.dtype == Dtype::kF32 || !is_input(l.graph, conv.in[0]));
  wish.weights_lo = strict;
  wish.wgmma = l.chip.wgmma;
  wish.shared_limit = l.chip.shared_bytes - (4 << 10);  // columns' constants have the rest
  wish.multiprocessors = l.chip.multiprocessors;
  // Passes over the same operand share a copy, which all must be able to read: none may keep two numbers a
  // column.
  wish.sweeps = std::ranges::all_of(l.passes, [&](const Pass& other) {
    if (other.conv == kNone || l.graph[other.conv].in[0] != conv.in[0]) return true;
    const Fusion f = choose_fusion(l, other, kNone, true);
    return std::ranges::none_of(f.nodes, [&](Id id) {
      return f.reduction[id] && (is(l.graph[id], Op::kMoments) || is(l.graph[id], Op::kSoftmaxStats));
    });
  });
  return wish;
}

// What it must for this fusion too, whose pool has that window.
void add_wishes(const Lowering& l, const Fusion& f, const ConvGeometry& geometry, const Shape& window,
                TileWish& wish) {
  wish.pooled = f.pool != kNone;
  wish.pool = wish.rest = {1, 1, 1};
  for (size_t a = 0; a < geometry.spatial && wish.pooled; ++a) {
    const size_t axis = 3 - geometry.spatial + a;
    wish.pool[axis] = static_cast<int>(window[a]);
    wish.rest[axis] = static_cast<int>(pool_window(l.graph[f.pool])[a] / window[a]);
  }
  wish.whole_columns = f.whole_columns;
  wish.one_sample = f.one_sample;
  wish.store_phases = f.store_phases;
  wish.all_outputs = f.all_outputs;
  wish.reduces = std::ranges::find(f.reduction, true) != f.reduction.end();
  wish.by_line = wish.pooled;
  wish.pool_leaves = wish.pooled && f.stores == std::vector<Id>{f.pool} &&
                     (!is_output(l.graph, f.pool) || l.options.dtype == Dtype::kF32);
  for (const Id id : f.nodes) {
    if (f.reduction[id])  // others keep numbers in registers for each column
      wish.by_line = wish.by_line && is(l.graph[id], Op::kMoments) && l.graph[id].in[0] == f.conv;
    else if (f.behind_pool[id] && id != f.pool)
      wish.pool_leaves = false;
  }
  for (const Id id : f.stores) wish.by_line = wish.by_line && f.behind_pool[id];
  wish.stores = !f.stores.empty();
  wish.float_rows = f.stores == std::vector<Id>{l.graph.output} && l.options.dtype == Dtype::kF32 &&
                    !f.scalar[l.graph.output] && geometry.out.back() % 4 == 0;
}

}  // namespace

// With the pool, without; with reductions over space, without; at last the convolution alone.
bool choose_tiles(Lowering& l, Pass& pass, Fusion& fusion, ConvTiles& tiles, std::string& why) {
  const ConvGeometry geometry = conv_geometry(l.graph, l.graph[pass.conv]);
  TileWish wish = wish_of(l, l.graph[pass.conv]);
  auto fits = [&](const Pass& part, Id pool, const Shape& window, bool over_space) {
    fusion = choose_fusion(l, part, pool, over_space);
    if (pool != kNone && !fusion.holds(pool)) return false;
    add_wishes(l, fusion, geometry, window, wish);
    // Sweeps have both phases of the width at hand, even if nothing is stored.
    if (wish.sweeps && wish.reduces && !wish.pooled && geometry.stride.back() == 2 &&
        fusion.store_phases == 1) {
      wish.store_phases = fusion.store_phases = 2;
      if (tile_conv(geometry, wish, tiles, why) && tiles.swept) return true;
      wish.store_phases = fusion.store_phases = 1;
    }
    return tile_conv(geometry, wish, tiles, why);
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
      if (!fits(pass, pool, window, over_space)) continue;
      Shape here = window;  // what leaves a tile of whole lines
      for (size_t a = 0; a < geometry.spatial; ++a) here[a] *= tiles.join[3 + a - geometry.spatial];
      pool = split_pool(l, pass, pool, here);
      fusion = choose_fusion(l, pass, pool, over_space, tiles.joins());
      return true;
    }
    if (fits(pass, kNone, {}, over_space)) return true;
  }
  Pass alone;
  alone.nodes = alone.writes = {pass.conv};
  alone.conv = pass.conv;
  return fits(alone, kNone, {}, false);
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
void keep_stores(Lowering& l, const Fusion& fusion, ConvTiles& tiles, const std::string& g) {
  // Nobody else reads the copy.
  const bool alone = std::ranges::count_if(l.passes, [](const Pass& p) { return p.conv != kNone; }) == 1;
  for (const Id id : fusion.stores) {
    // Blocks of channels only of values behind a pool, for others are stored phase beside phase.
    const bool behind = tiles.by_line && !is_output(l.graph, id) && !fusion.scalar[id];
    const Id norm = behind && tiles.n * tiles.column_blocks == tiles.c_out ? norm_of_blocks(l, id) : kNone;
    Location& place = l.source.places[id];
    if (norm == l.graph.output && l.options.dtype != Dtype::kF32 && fusion.stores.size() == 1 && alone &&
        divide_lines(tiles, l.graph[id].shape[2], l.graph[id].shape[3])) {
      place = {Location::Kind::kOutput, 0, false, true, g};
    } else {
      l.keep(id);
      place.blocked = norm != kNone && (!place.element || l.options.dtype == Dtype::kF32);
    }
    if (place.blocked && place.kind == Location::Kind::kOutput) l.out.output_alignment = 16;
  }
}

// The kernel, and the one that does the same in float32 where fp16 cannot hold the data.
void write_conv(Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                const Prepared& p, int index) {
  const std::string g = fmt::format("G{}", index);
  auto emit = [&](const char* name, int resident, const std::string& text, int blocks, int block, int shared,
                  const char* parameters = "", const char* begin = "await_previous();",
                  std::vector<TensorView> views = {}) {
    const std::string full = fmt::format("{}_{}", name, index);
    const auto threads = static_cast<unsigned>(block);
    l.write_kernel(full, threads, static_cast<unsigned>(resident), text, parameters, begin);
    l.out.run.push_back({full,
                         {static_cast<unsigned>(blocks), static_cast<unsigned>(tiles.column_blocks)},
                         threads,
                         static_cast<unsigned>(shared),
                         std::move(views)});
  };
  const int threads = tiles.warpgroups * 128, loader = tiles.by_line || tiles.swept ? 128 : 0;
  int blocks = tiles.by_line   ? tiles.launched
               : tiles.joins() ? tiles.whole + tiles.split_units() * tiles.join[0]
                               : tiles.tiles;
  if (tiles.held) {
    blocks = 0;
    for (const Owner& o : tiles.owners) blocks += o.blocks;
  }
  if (l.relay)  // whose launches will stand there
    l.out.run.push_back({fmt::format("conv_{}", index)});
  else
    emit("conv", tiles.resident, conv_text(l, fusion, tiles, e, g, false), blocks, threads + loader,
         tiles.shared_bytes(),
         tiles.swept     ? ", const __grid_constant__ Maps maps"
         : tiles.by_line ? ", const __grid_constant__ LegTurns leg"
                         : "",
         tiles.legs.size() > 1 ? "if (leg.number == 0) { await_previous(); admit_next(); }"
                               : "await_previous();",
         tiles.swept ? sweep_views(tiles, p) : std::vector<TensorView>{});
  for (size_t leg = 0; leg < tiles.legs.size(); ++leg) {
    if (leg > 0) l.out.run.push_back(l.out.run.back());
    l.out.run.back().numbers = leg_numbers(tiles, leg);
  }
  if (!tiles.by_line && !tiles.swept) blocks = std::min(l.chip.multiprocessors * 2, tiles.tiles);
  ConvTiles plain = tiles;  // float32 products have no copy engine at hand
  plain.staging = 0;
  emit("conv_fma", 1,
       conv_text(l, fusion, plain, tiles.staging > 0 ? epilogue(l, fusion, plain) : e, g, true), blocks,
       threads, std::max(threads / 32 * tiles.n * 12, tiles.joined_bytes()));
  if (!e.join.empty()) {
    emit("join", 0,
         fmt::format("  typedef {} G;\n  if (((const Scale*)(a.ws + G::kScale))->other_path | ((const "
                     "Scale*)(a.packed + G::kWeightScale))->other_path) return;\n{}",
                     g, e.join),
         tiles.split_units(), threads, 0);
  }
}

std::string conv_note(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, int index) {
  std::vector<std::string> names;
  for (const Id id : fusion.nodes) names.emplace_back(l.graph[id].op->name);
  return fmt::format(
      "kernel conv_{}: {} | {} rows x {} columns, {} warpgroups, {} products{}, {} KB of shared memory, {} "
      "tiles, {:.0f}% of rows useful{}",
      index, fmt::join(names, " | "), tiles.m, tiles.n, tiles.warpgroups,
      1 + tiles.input_lo + tiles.weights_lo, l.chip.wgmma ? " by wgmma" : " by mma.sync",
      tiles.shared_bytes() >> 10, tiles.tiles, 100 * tiles.efficiency(),
      tiles.swept     ? ", weights stay, planes go through a ring"
      : tiles.held    ? ", weights stay in shared memory"
      : tiles.by_line ? tiles.legs.size() > 1 ? ", line by line in two launches" : ", line by line"
      : tiles.joins() ? ", whole lines"
                      : "");
}

}  // namespace

bool lower_conv(Lowering& l, Pass& pass, std::vector<bool>& done, std::string& why) {
  if (l.chip.major < 8) return why = "the chip is older than sm_80", false;
  if (l.graph[pass.conv].in[2] != kNone) return why = "the convolution still has its bias", false;
  ConvTiles tiles;
  Fusion fusion;
  if (!choose_tiles(l, pass, fusion, tiles, why)) return false;
  done.resize(l.graph.nodes.size(), false);  // a pool may be two now
  if (tiles.steps.size() * (tiles.variants * 4 + 3) > 12000)
    return why = "its taps overflow the constant tables", false;
  lower_head(l, pass, done);
  const bool ends_relay = l.relay != nullptr;
  if (!ends_relay) l.relay = make_relay(l, pass, fusion, tiles);
  if (ends_relay && tiles.abreast) go_abreast(tiles, second_shares(*l.relay));

  const Id x = l.graph[pass.conv].in[0], kernel = l.graph[pass.conv].in[1];
  const int index = l.convs++;
  const std::string g = fmt::format("G{}", index);
  keep_stores(l, fusion, tiles, g);
  const Prepared p = prepare(l, tiles, x, kernel);
  l.kernels += geometry_text(g, tiles, p) + products_text(g, tiles);
  for (const Id id : fusion.stores) {  // named by inlined values, even if no kernel calls them
    if (l.source.places[id].divided.empty()) continue;
    l.kernels += fmt::format(
        "DEVICE float v{}(const Args& a, const At& i) {{ return load<float>(divided_at<{}>(a, i.x[0], i.x[1] "
        "/ 16, i.x[2]), i.x[3] * 16 + i.x[1] % 16); }}\n",
        id, g);
  }
  if (p.fresh) convert_and_pack(l, tiles, g, index, x, kernel);
  const EpilogueText e = epilogue(l, fusion, tiles);
  write_conv(l, fusion, tiles, e, p, index);
  note_conv_work(l, fusion, tiles);
  combine_reductions(l, fusion, tiles);
  for (const Id id : fusion.nodes) done[id] = true;
  l.out.notes.push_back(conv_note(l, fusion, tiles, index));
  if (ends_relay) {
    write_relay(l, fusion, tiles, e, p, index);
    l.relay = nullptr;
  } else if (l.relay) {
    l.relay->fusion = fusion;
    l.relay->tiles = tiles;
    l.relay->text = e;
    l.relay->prepared = p;
  }
  return true;
}

// Reductions over `axes`, and those that join values two by two.
static bool over(const Node& node, const char* axes) {
  return node.attrs.has("axes") && node.attrs.word("axes") == axes;
}
static bool joins_values(const Node& node) {
  return is(node, Op::kSum) || is(node, Op::kMean) || is(node, Op::kMax) || is(node, Op::kMin);
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
    } else if (over(node, "channel") && !scalars && node.in[0] != kNone && !is(node, Op::kSoftmaxStats)) {
      f.whole_columns = true;
      scalar = joins_values(node) || is(node, Op::kLogsumexp);
    } else if (over_space && !scalars &&
               (is(node, Op::kMoments) ||
                (over(node, "space") && (joins_values(node) || is(node, Op::kSoftmaxStats))))) {
      reduction = true;
      if (!(is(node, Op::kMoments) && node.attrs.word("axes") == "batch")) f.one_sample = true;
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
