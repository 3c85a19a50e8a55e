#include "engine/cuda/fuse.h"

#include <algorithm>

#include "base/dtype.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

namespace upweave::cuda {
namespace {

bool is_pool(const Node& node) {
  return is(node, "avg_pool") || is(node, "max_pool") || is(node, "min_pool");
}

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

std::string ints(const std::string& name, const char* type, const std::vector<int64_t>& values) {
  return fmt::format("__constant__ const {} {}[{}] = {{{}}};\n", type, name,
                     std::max<size_t>(1, values.size()), fmt::join(values, ", "));
}

unsigned convert_blocks(const ConvTiles& t) {
  const int64_t rows_per_block = 256 / (t.ck / 8), rows = t.rows + 2 * t.guard;
  return static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block * t.residues * t.blocks);
}

int64_t weight_columns(const ConvTiles& t) {
  return int64_t{t.c_out} * t.axis[0].kernel * t.axis[1].kernel * t.axis[2].kernel;
}

// Where the fp16 copy of `x` and the packed `kernel` lie: places of their own, or those of an earlier pass
// whose tiles read the same rows and the same stream.
Prepared prepare(Lowering& l, const ConvTiles& t, Id x, Id kernel) {
  std::string key = fmt::format("{} {} {} {} {} {} {} {}", x, kernel, t.plane, t.guard, t.ck, t.n,
                                t.column_blocks, t.steps.size());
  for (const Axis& a : t.axis) key += fmt::format(" {} {}", a.pitch, a.f);
  if (const auto ready = l.prepared.find(key); ready != l.prepared.end()) {
    Prepared again = ready->second;
    again.fresh = false;
    return again;
  }
  Prepared p;
  p.copy = l.reserve(t.copy_bytes());
  p.scale = l.reserve(16);
  p.extremes = l.reserve(int64_t{convert_blocks(t)} * 8);
  p.stream = l.reserve_packed(t.stream_bytes());
  p.weight_scale = l.reserve_packed(16);
  p.weight_extremes = l.reserve_packed(weight_columns(t) * 8);
  return l.prepared[key] = p;
}

// The tiling as constants of a struct and tables beside it.
std::string geometry_text(const std::string& g, const ConvTiles& t, const Prepared& p, int store_phases) {
  const auto& [d, h, w] = t.axis;
  std::string text = fmt::format("struct {} {{\n", g);
  auto add = [&](const char* name, int64_t value) {
    text += fmt::format("  static constexpr i64 {} = {}ll;\n", name, value);
  };
  auto put = [&](const char* name, int64_t value) {
    text += fmt::format("  static constexpr int {} = {};\n", name, value);
  };
  put("kBatch", t.batch), put("kCIn", t.c_in), put("kCOut", t.c_out), put("kCk", t.ck),
      put("kBlocks", t.blocks);
  put("kN", t.n), put("kNr", t.n / 2), put("kColumnBlocks", t.column_blocks), put("kPlane", t.plane),
      add("kRows", t.rows);
  put("kGuard", t.guard), put("kBoxes", t.boxes), put("kLines", t.lines), put("kWidth", std::max(8, t.width)),
      put("kM", t.m);
  put("kThreads", t.warpgroups * 128), put("kPieces", t.pieces), put("kVariants", t.variants),
      put("kSums", t.pieces * t.variants);
  put("kTilesPerPlane", t.tiles_per_plane), put("kTilesAcross", t.tiles_across), put("kTiles", t.tiles),
      put("kResidues", t.residues), put("kConvertBlocks", convert_blocks(t)),
      put("kChunks", static_cast<int64_t>(t.chunks.size())), put("kChunkBytes", t.chunk_bytes());
  put("kTileBytes", t.tile_bytes()), put("kTileShared", t.tile_shared()),
      put("kTileHalf", t.tile_bytes() / (t.input_lo ? 2 : 1));
  put("kStages", t.stages), put("kStageBytes", t.stage_bytes()), put("kSlabBytes", t.slab_bytes());
  put("kGroups", static_cast<int64_t>(t.group_begin.size()) - 1),
      put("kSteps", static_cast<int64_t>(t.steps.size()));
  put("kInputLo", t.input_lo), put("kWeightsLo", t.weights_lo), put("kStorePhases", store_phases);
  put("kPitchD", d.pitch), put("kPitchH", h.pitch), put("kPitchW", w.pitch), put("kJd", d.windows),
      put("kJh", h.windows), put("kJw", w.windows);
  put("kFd", d.f), put("kFh", h.f), put("kFw", w.f), put("kInD", d.in), put("kInH", h.in), put("kInW", w.in);
  put("kKd", d.kernel), put("kKh", h.kernel), put("kKw", w.kernel), add("kPlaneBytes", t.plane_bytes());
  add("kCopy", p.copy), add("kCopyHalf", t.copy_bytes() / (t.input_lo ? 2 : 1)), add("kScale", p.scale),
      add("kExtremes", p.extremes);
  add("kStream", p.stream), add("kWeightScale", p.weight_scale), add("kWeightExtremes", p.weight_extremes);
  put("kWeightExtremeCount", weight_columns(t));
  text += "};\n";
  std::vector<int64_t> chunks, taps, deltas;
  for (const Chunk& c : t.chunks) {
    chunks.push_back((int64_t{c.residue} * t.blocks + c.block) * t.plane_bytes() +
                     (int64_t{t.guard} + c.first_row) * t.row_bytes());
  }
  for (const Step& s : t.steps) {
    const int block = s.chunk_base * t.blocks / std::max<int>(1, static_cast<int>(t.chunks.size()));
    taps.insert(taps.end(), {s.tap[0], s.tap[1], s.tap[2] | block << 16});
    for (const auto& delta : s.delta) deltas.insert(deltas.end(), delta.begin(), delta.end());
  }
  text += ints(g + "_chunks", "i64", chunks);
  text += ints(g + "_classes", "int", {t.class_begin.begin(), t.class_begin.end()});
  text += ints(g + "_groups", "int", {t.group_begin.begin(), t.group_begin.end()});
  text += ints(g + "_taps", "int", taps) + ints(g + "_deltas", "int", deltas);
  return text;
}

// The products of each class, every address a literal.
std::string products_text(const std::string& g, const ConvTiles& t) {
  std::string text = fmt::format(
      "DEVICE void products(float (&sum)[{0}::kSums][{0}::kNr], Pipe<{0}>& pipe, int cls) {{\n  switch (cls) "
      "{{\n",
      g);
  for (size_t c = 0; c + 1 < t.class_begin.size(); ++c) {
    text += fmt::format("    case {}:\n", c);
    if (t.class_begin[c] == t.class_begin[c + 1]) {  // no tap reaches these outputs
      text += fmt::format("      for (auto& s : sum) for (float& x : s) x = 0.f;\n");
    }
    for (int group = t.class_begin[c]; group < t.class_begin[c + 1]; ++group) {
      std::vector<int64_t> offsets;
      for (int s = t.group_begin[group]; s < t.group_begin[group + 1]; ++s) {
        for (const int row : t.steps[s].row_offset) offsets.push_back(int64_t{row} * t.row_bytes());
      }
      text += fmt::format("      group_products<{}, {}>(sum, pipe, {}, {{{}}}, {});\n", g,
                          t.group_begin[group + 1] - t.group_begin[group], group, fmt::join(offsets, ", "),
                          group == t.class_begin[c]);
    }
    text += "      break;\n";
  }
  return text + "  }\n}\n";
}

// "v3(a, At{{n, c, h, w, 0}})" for coordinates n, c, d, h, w of a value with `spatial` axes.
std::string input_value(const Lowering& l, Id id) {
  const Shape& shape = l.graph[id].shape;
  const size_t spatial = spatial_rank(shape);
  const char* axes[] = {"d", "h", "w"};
  std::string at = "const At i = At{{n, c";
  for (size_t a = 0; a < 3; ++a) at += fmt::format(", {}", a < spatial ? axes[3 - spatial + a] : "0");
  return fmt::format("[&](int n, int c, int d, int h, int w) {{ {}}}}}; return {}; }}", at,
                     l.source.operand(id, shape, "i"));
}

// The pre-pass of the input, launched by every run, and the packing of the kernel.
void convert_and_pack(Lowering& l, const ConvTiles& t, const std::string& g, int index, Id x, Id kernel) {
  auto kernel_of = [&](std::vector<Launch>& list, const char* name, int64_t blocks, unsigned block,
                       const std::string& body) {
    const std::string full = fmt::format("{}_{}", name, index);
    l.kernels +=
        fmt::format("extern \"C\" __global__ void __launch_bounds__({}, 1) {}(const Args a) {{\n{}\n}}\n",
                    block, full, body);
    list.push_back({full, {static_cast<unsigned>(blocks), 1}, block, 0});
  };
  const std::string value = input_value(l, x), weight = input_value(l, kernel);
  const unsigned blocks = convert_blocks(t);
  const unsigned few = static_cast<unsigned>(l.chip.multiprocessors) * 8;  // usually they find nothing to do
  kernel_of(l.out.run, "convert", blocks, 256, fmt::format("convert_rows<{}>(a, {}, true);", g, value));
  kernel_of(
      l.out.run, "choose", 1, 1024,
      fmt::format(
          "choose_scale((const uint2*)(a.ws + {0}::kExtremes), {1}, (Scale*)(a.ws + {0}::kScale), false);", g,
          blocks));
  kernel_of(l.out.run, "rescale", std::min(few, blocks), 256,
            fmt::format("convert_rows<{}>(a, {}, false);", g, value));
  const int64_t columns = weight_columns(t);
  const int64_t chunks = static_cast<int64_t>(t.steps.size()) * t.column_blocks * t.n * (t.ck / 8);
  kernel_of(l.out.pack, "weight_extremes", (columns + 255) / 256, 256,
            fmt::format("weight_extremes<{}>(a, {});", g, weight));
  kernel_of(l.out.pack, "weight_choose", 1, 1024,
            fmt::format("choose_scale((const uint2*)(a.packed + {0}::kWeightExtremes), {1}, "
                        "(Scale*)(a.packed + {0}::kWeightScale), true);",
                        g, columns));
  kernel_of(l.out.pack, "pack", (chunks + 255) / 256, 256,
            fmt::format("pack_weights<{0}>(a, (const int(*)[3]){0}_taps, {1});", g, weight));
}

}  // namespace

bool lower_conv(Lowering& l, Pass& pass, std::vector<bool>& done, std::string& why) {
  const ConvGeometry geometry = conv_geometry(l.graph, l.graph[pass.conv]);
  if (l.chip.major < 8) return why = "the chip is older than sm_80", false;
  if (l.graph[pass.conv].in[2] != kNone) return why = "the convolution still has its bias", false;
  const bool strict = l.options.precision == Precision::kStrict;
  TileWish wish;
  // 16-bit inputs are fp16 numbers after scaling; what is computed before the convolution is not.
  wish.input_lo = strict && (l.options.dtype == Dtype::kF32 || l.graph[pass.conv].in[0] != 0);
  wish.weights_lo = strict;
  wish.wgmma = l.chip.wgmma;
  wish.shared_limit = l.chip.shared_bytes - (4 << 10);  // columns' constants have the rest

  // The pool that may join, if there is one: its whole window, then one stride of it, then none.
  Id pool = kNone;
  for (const Id id : pass.nodes) {
    if (pool == kNone && is_pool(l.graph[id]) && tiles_space(l.graph[id]) && !ancestors(l.graph, pass)[id])
      pool = id;
  }
  ConvTiles tiles;
  Fusion fusion;
  bool found = false;
  auto fits = [&](const Pass& part, Id with_pool, const Shape& window, bool over_space) {
    fusion = choose_fusion(l, part, with_pool, over_space);
    if (with_pool != kNone && !fusion.holds(with_pool)) return false;
    wish.pool = {1, 1, 1};
    for (size_t a = 0; a < geometry.spatial && with_pool != kNone; ++a) {
      wish.pool[3 - geometry.spatial + a] = static_cast<int>(window[a]);
    }
    wish.whole_columns = fusion.whole_columns;
    wish.one_sample = fusion.one_sample;
    wish.store_phases = fusion.store_phases;
    wish.pooled = with_pool != kNone;
    wish.all_outputs = fusion.all_outputs;
    return tile_conv(geometry, wish, tiles, why);
  };
  // As much as fits: with the pool, without; with reductions over space, without; at last the convolution
  // alone.
  const std::vector<Shape> windows =
      pool == kNone ? std::vector<Shape>{} : windows_here(geometry, l.graph[pool]);
  for (const bool over_space : {true, false}) {
    for (const Shape& window : windows) {
      if (found || !fits(pass, pool, window, over_space)) continue;
      pool = split_pool(l, pass, pool, window);
      done.resize(l.graph.nodes.size(), false);
      fusion = choose_fusion(l, pass, pool, over_space);
      found = true;
    }
    found = found || fits(pass, kNone, {}, over_space);
    if (found) break;
  }
  if (!found) {
    Pass alone;
    alone.nodes = alone.writes = {pass.conv};
    alone.conv = pass.conv;
    if (!fits(alone, kNone, {}, false)) return false;
  }
  if (tiles.steps.size() * (tiles.variants * 4 + 3) > 12000)
    return why = "its taps overflow the constant tables", false;

  // What comes before the convolution: computed where it is read if it can be.
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

  const Node& conv = l.graph[pass.conv];
  const Id x = conv.in[0], kernel = conv.in[1];
  const int index = l.convs++;
  const std::string g = fmt::format("G{}", index);
  const Prepared p = prepare(l, tiles, x, kernel);
  l.kernels += geometry_text(g, tiles, p, fusion.store_phases) + products_text(g, tiles);
  if (p.fresh) convert_and_pack(l, tiles, g, index, x, kernel);

  for (const Id id : fusion.stores) l.keep(id);
  const EpilogueText e = epilogue(l, fusion, tiles);
  const int classes = static_cast<int>(tiles.phases.size()), groups = classes / fusion.store_phases;
  const auto& [d, h, w] = tiles.axis;
  const std::string phases =
      fusion.store_phases > 1
          ? fmt::format("const int ed = group / {0}, eh = group % {0}, ew = 0;", h.stride)
          : fmt::format("const int ed = group / {0}, eh = group / {1} % {2}, ew = group % {1};",
                        h.stride * w.stride, w.stride, h.stride);
  // One text for both kernels: products on tensor cores, or in float32 for data that fp16 cannot hold.
  auto body = [&](bool fma) {
    std::string s = fmt::format(
        "  typedef {0} G;\n  const Scale& sx = *(const Scale*)(a.ws + G::kScale);\n  const Scale& sw = "
        "*(const Scale*)(a.packed + G::kWeightScale);\n"
        "  if ({1}(sx.other_path | sw.other_path)) return;\n  extern __shared__ u8 raw[];\n  {2}\n"
        "  const int lane = threadIdx.x % 32, t = lane % 4, column0 = blockIdx.y * G::kN + 2 * t;\n  Row "
        "rows[G::kPieces][2];\n"
        "#pragma unroll\n  for (int p = 0; p < G::kPieces; ++p)\n#pragma unroll\n    for (int r = 0; r < 2; "
        "++r)\n"
        "      rows[p][r] = row_of<G>(tile, threadIdx.x / 128 * G::kPieces + p, threadIdx.x / 32 % 4 * 16 + "
        "lane / 4 + 8 * r);\n",
        g, fma ? "!" : "",
        fma ? "for (int tile = blockIdx.x; tile < G::kTiles; tile += gridDim.x) {"
            : "const int tile = blockIdx.x;");
    if (!fma) {
      s += fmt::format(
          "  const u32 shared = (shared_address(raw) + 1023) & ~1023u;\n  Pipe<G> pipe;\n  pipe.start(a, "
          "shared, tile, {0}_chunks, {0}_groups);\n"
          "  const float down = sx.down * sw.down;\n",
          g);
    } else {
      s += fmt::format("  const float down = 1.f;\n  auto xv = {};\n  auto wv = {};\n", input_value(l, x),
                       input_value(l, kernel));
    }
    s += e.state;
    s += fmt::format(
        "#pragma unroll 1\n  for (int group = 0; group < {}; ++group) {{\n    float "
        "sum[{}][G::kSums][G::kNr];\n",
        groups, fusion.store_phases);
    if (!fma) s += "    pipe.refresh();\n";
    s += fmt::format("#pragma unroll\n    for (int ph = 0; ph < {}; ++ph) {{\n", fusion.store_phases);
    if (fma) {
      s += fmt::format(
          "      products_fma<G>(sum[ph], group * {0} + ph, {1}_classes, {1}_groups, (const "
          "int(*)[3]){1}_taps, (const int(*)[3]){1}_deltas, rows, xv, wv);\n    }}\n",
          fusion.store_phases, g);
    } else {
      s += fmt::format("      products(sum[ph], pipe, group * {0} + ph);\n    }}\n", fusion.store_phases);
    }
    s += fmt::format(
        "    {}\n#pragma unroll\n    for (int s = 0; s < G::kSums; ++s)\n#pragma unroll\n      for (int r = "
        "0; r < 2; ++r) {{\n"
        "        const int v = s / G::kPieces, p = s % G::kPieces;\n        const Row& row = rows[p][r];\n"
        "        const int ud = v / (G::kFh * G::kFw), uh = v / G::kFw % G::kFh, uw = v % G::kFw;\n{}      "
        "}}\n  }}\n",
        phases, e.point);
    if (!e.window.empty()) {
      s += fmt::format(
          "#pragma unroll\n  for (int p = 0; p < G::kPieces; ++p)\n#pragma unroll\n    for (int r = 0; r < "
          "2; ++r) {{\n      const Row& row = rows[p][r];\n{}    }}\n",
          e.window);
    }
    return s + e.finish + (fma ? "  }\n" : "");
  };
  const unsigned threads = static_cast<unsigned>(tiles.warpgroups) * 128;
  const auto count = static_cast<unsigned>(tiles.tiles), columns = static_cast<unsigned>(tiles.column_blocks);
  auto emit = [&](const char* name, int resident, const std::string& text, unsigned blocks, unsigned shared) {
    const std::string full = fmt::format("{}_{}", name, index);
    l.kernels +=
        fmt::format("extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const Args a) {{\n{}\n}}\n",
                    threads, resident, full, text);
    l.out.run.push_back({full, {blocks, columns}, threads, shared});
  };
  emit("conv", tiles.resident, body(false), count, static_cast<unsigned>(tiles.shared_bytes()));
  emit("conv_fma", 1, body(true), std::min(static_cast<unsigned>(l.chip.multiprocessors) * 2, count),
       threads / 32 * static_cast<unsigned>(tiles.n) * 12);
  note_conv_work(l, fusion, tiles);
  combine_reductions(l, fusion, tiles);
  for (const Id id : fusion.nodes) done[id] = true;
  std::vector<std::string> names;
  for (const Id id : fusion.nodes) names.emplace_back(l.graph[id].op->name);
  l.out.notes.push_back(
      fmt::format("kernel conv_{}: {} | {} rows x {} columns, {} warpgroups, {} products{}, {} KB of shared "
                  "memory, {} tiles, {:.0f}% of rows useful",
                  index, fmt::join(names, " | "), tiles.m, tiles.n, tiles.warpgroups,
                  1 + tiles.input_lo + tiles.weights_lo, l.chip.wgmma ? " by wgmma" : " by mma.sync",
                  tiles.shared_bytes() >> 10, tiles.tiles, 100 * tiles.efficiency()));
  return true;
}

Fusion choose_fusion(const Lowering& l, const Pass& pass, Id pool, bool over_space) {
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
    const bool channel = node.attrs.has("axes") && node.attrs.word("axes") == "channel";
    const bool space = node.attrs.has("axes") && node.attrs.word("axes") == "space";
    bool reduction = false, scalar = scalars;
    if (is_pointwise(node)) {
      if (node.shape[1] != 1) scalar = false;
    } else if (id == pool) {
      if (behind || scalars) continue;
      behind = true;
      scalar = false;
    } else if (channel && !scalars && node.in[0] != kNone && !is(node, "softmax_stats")) {
      f.whole_columns = true;
      scalar =
          is(node, "sum") || is(node, "mean") || is(node, "max") || is(node, "min") || is(node, "logsumexp");
    } else if (over_space && !scalars &&
               (is(node, "moments") || (space && (is(node, "sum") || is(node, "mean") || is(node, "max") ||
                                                  is(node, "min") || is(node, "softmax_stats"))))) {
      reduction = true;
      if (!(is(node, "moments") && node.attrs.word("axes") == "batch")) f.one_sample = true;
    } else {
      continue;
    }
    if (scalar && !reduction) f.whole_columns = true;
    f.here[id] = true;
    f.behind_pool[id] = behind;
    f.scalar[id] = scalar && !reduction;
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
