#include "engine/cuda/conv_text.h"

#include <algorithm>

#include "graph/operation.h"

namespace upweave::cuda {
namespace {

std::string ints(const std::string& name, const char* type, const std::vector<int64_t>& values) {
  return fmt::format("__constant__ const {} {}[{}] = {{{}}};\n", type, name,
                     std::max<size_t>(1, values.size()), fmt::join(values, ", "));
}

// The products of each class, every address a literal.
std::string streamed_products(const std::string& g, const ConvTiles& t) {
  std::string text = fmt::format(
      "DEVICE void products(float (&sum)[{0}::kSums][{0}::kNr], Pipe<{0}>& pipe, int cls) {{\n"
      "  switch (cls) {{\n",
      g);
  for (size_t c = 0; c + 1 < t.class_begin.size(); ++c) {
    text += fmt::format("    case {}:\n", c);
    if (t.class_begin[c] == t.class_begin[c + 1]) {
      // No tap reaches these outputs. Zeros that the compiler does not know: it would move them between other
      // classes' products, and have those wait for one another.
      text += "      for (auto& s : sum) for (float& x : s) { x = 0.f; asm volatile(\"\" : \"+f\"(x)); }\n";
    }
    for (int group = t.class_begin[c]; group < t.class_begin[c + 1]; ++group) {
      std::vector<int64_t> offsets;
      for (int s = t.group_begin[group]; s < t.group_begin[group + 1]; ++s) {
        for (const int row : t.steps[s].row_offset) offsets.push_back(int64_t{row} * t.row_bytes());
      }
      text += fmt::format("      group_products<{}, {}>(sum, pipe, {}, {{{}}}, {}, {});\n", g,
                          t.group_begin[group + 1] - t.group_begin[group], group, fmt::join(offsets, ", "),
                          group == t.class_begin[c], group + 1 == t.class_begin[c + 1]);
      if (t.settles) text += "      hold(sum);\n";
    }
    text += "      break;\n";
  }
  return text + "  }\n}\n";
}

// The products of each group of phases where weights stay, every address a literal.
std::string held_products(const std::string& g, const ConvTiles& t) {
  std::string text = fmt::format(
      "DEVICE void held_products(float (&sum)[{1}][{0}::kSums][{0}::kNr], Held<{0}>& pipe, int group, bool "
      "last) {{\n  switch (group) {{\n",
      g, t.store_phases);
  for (const Owner& owner : t.owners) {
    int slab = 0;
    for (const int group : owner.groups) {
      std::string calls, after;
      for (int ph = 0; ph < t.store_phases; ++ph) {
        const int c = group * t.store_phases + ph;
        const int from = t.group_begin[t.class_begin[c]], to = t.group_begin[t.class_begin[c + 1]];
        if (from == to) {  // no tap reaches these outputs
          after += fmt::format("      for (auto& s : sum[{}]) for (float& x : s) x = 0.f;\n", ph);
          continue;
        }
        std::vector<int64_t> offsets;
        for (int s = from; s < to; ++s) {
          for (const int row : t.steps[s].row_offset) offsets.push_back(int64_t{row} * t.row_bytes());
        }
        calls += fmt::format("      held_steps<{}, {}>(sum[{}], pipe, {}, {{{}}});\n", g, to - from, ph,
                             slab * t.slab_bytes(), fmt::join(offsets, ", "));
        after += fmt::format("      hold(sum[{}]);\n", ph);
        slab += to - from;
      }
      // Between the first product and the wait there is no branch: the compiler would serialise them.
      text += fmt::format(
          "    case {}:\n      wgmma_fence();\n{}      wgmma_commit();\n      pipe.pass_turn(last);\n"
          "      wgmma_wait();\n{}      break;\n",
          group, calls, after);
    }
  }
  return text + "  }\n}\n";
}

// Which share of the phases and which tiles are this block's, and the loop over them.
std::string held_start(const std::string& g, const ConvTiles& t) {
  const std::string groups = by_owner(t, group_count), groups_before = before_owner(t, group_count);
  return fmt::format(
      "  const int owner = {}, block = blockIdx.x - ({}), blocks = {};\n"
      "  const int begin = block, end = G::kTiles, stride = blocks;\n"
      "  const int group_count = {}; const int* my_groups = {}_phases + ({}); (void)my_groups;\n"
      "  if (G::kScratch) scratch = (float*)(raw + (shared - shared_address(raw)) + G::kBuffers * "
      "G::kTileShared + G::kWeightShared) + threadIdx.x / 128 * 4 * G::kN * 3;\n  Held<G> pipe;\n"
      "  pipe.start(a, shared, begin, end, stride, {}_chunks + ({}), {}, (const int(*)[2]){}_slabs + ({}), "
      "{});\n#pragma unroll 1\n  for (int tile = begin, turn = 0; tile < end; tile += stride, ++turn) {{\n",
      owner_of_block(t), before_owner(t, &Owner::blocks), by_owner(t, &Owner::blocks), groups, g,
      groups_before, g, by_owner(t, &Owner::first_chunk), by_owner(t, &Owner::chunks), g, groups_before,
      groups);
}

}  // namespace

std::string owner_of_block(const ConvTiles& t) {
  std::string text;
  int blocks = 0;
  for (size_t o = 0; o + 1 < t.owners.size(); ++o) {
    blocks += t.owners[o].blocks;
    text += fmt::format("(int)blockIdx.x < {} ? {} : ", blocks, o);
  }
  return text + fmt::format("{}", t.owners.size() - 1);
}

std::string by_owner(const std::vector<int>& values) {
  std::string text;
  for (size_t o = 0; o + 1 < values.size(); ++o) text += fmt::format("owner == {} ? {} : ", o, values[o]);
  return text + fmt::format("{}", values.back());
}

unsigned convert_blocks(const ConvTiles& t) {
  const int64_t rows_per_block = 256 / (t.ck / 8), rows = t.rows + 2 * t.guard;
  return static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block * (t.residues / t.axis[2].f) *
                               t.blocks);
}

int64_t weight_columns(const ConvTiles& t) {
  return int64_t{t.c_out} * t.axis[0].kernel * t.axis[1].kernel * t.axis[2].kernel;
}

// Turns of a leg for which every block has a list.
static size_t last_turns(const LineLeg& leg) {
  size_t most = 0;
  for (const auto& tiles : leg.last_tiles) most = std::max(most, tiles.size());
  return most;
}

std::vector<int> leg_numbers(const ConvTiles& t, size_t which) {
  size_t lists = 0;
  for (size_t i = 0; i < which; ++i) lists += last_turns(t.legs[i]) * t.launched;
  const LineLeg& leg = t.legs[which];
  return {static_cast<int>(which), leg.first, leg.plain_turns,
          leg.plain_turns + static_cast<int>(last_turns(leg)), static_cast<int>(lists)};
}

// The tiling as constants of a struct and tables beside it.
std::string geometry_text(const std::string& g, const ConvTiles& t, const Prepared& p) {
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
  put("kGuard", t.guard), put("kBoxes", t.boxes), put("kByLine", t.by_line), put("kLines", t.lines),
      put("kWidth", std::max(8, t.width)), put("kM", t.m);
  put("kThreads", t.warpgroups * 128), put("kPieces", t.pieces), put("kVariants", t.variants),
      put("kSums", t.pieces * t.variants);
  put("kTilesPerPlane", t.tiles_per_plane), put("kTilesAcross", t.tiles_across), put("kTiles", t.tiles),
      put("kResidues", t.residues), put("kConvertBlocks", convert_blocks(t)),
      put("kChunks", static_cast<int64_t>(t.chunks.size())), put("kChunkBytes", t.chunk_bytes());
  put("kTileShared", t.tile_shared()), put("kTileHalf", t.tile_half()), put("kBuffers", t.buffers),
      put("kOwners", static_cast<int64_t>(t.owners.size())), put("kWeightShared", t.weight_shared()),
      put("kScratch", t.scratch_bytes()), put("kTakers", t.takers);
  put("kStages", t.stages), put("kStageBytes", t.stage_bytes()), put("kSlabBytes", t.slab_bytes());
  const int64_t half_slab = int64_t{t.n} * t.row_bytes();
  add("kSlabStep", t.swept ? half_slab : t.slab_bytes()),
      add("kSlabLo", t.swept ? half_slab * static_cast<int64_t>(t.steps.size()) : half_slab);
  put("kGroups", static_cast<int64_t>(t.group_begin.size()) - 1),
      put("kSteps", static_cast<int64_t>(t.steps.size()));
  if (t.joins()) {
    put("kJoinD", t.join[0]), put("kJoinH", t.join[1]), put("kJoinW", t.join[2]), put("kUnits", t.units()),
        put("kWhole", t.whole), put("kWindowLines", t.lines / t.join[1]),
        put("kWindowsAcross", w.windows / t.join[2]), put("kJoinedWindows", t.joined_windows()),
        put("kJoinedPitch", t.joined_pitch());
  }
  if (t.pooled_lines > 0) {  // divided
    put("kPooledLines", t.pooled_lines), put("kPooledWidth", t.pooled_width), put("kOwnLines", t.own_lines),
        put("kRestSamples", t.rest_samples), add("kRest", p.copy);
  }
  if (t.swept) {
    put("kPlanes", t.planes), put("kRun", t.run), put("kAbreast", t.abreast), put("kTileLines", t.tile_lines),
        put("kLinesBefore", t.lines_before);
    put("kEvenPairs", t.views[0].pairs), put("kOddPairs", t.views[1].pairs), put("kOddAt", t.views[1].at);
    put("kSampleJobs", t.tiles / t.batch), put("kSampleSlots", t.sample_slots());
    put("kPartBytes", t.part_bytes), put("kStaging", t.staging);
    put("kGroupsOfPhases", static_cast<int64_t>(t.phases.size()) / 2);
  }
  put("kSwept", t.swept), put("kInputLo", t.input_lo), put("kWeightsLo", t.weights_lo),
      put("kStorePhases", t.store_phases);
  put("kPitchD", d.pitch), put("kPitchH", h.pitch), put("kPitchW", w.pitch), put("kJd", d.windows),
      put("kJh", h.windows), put("kJw", w.windows);
  put("kFd", d.f), put("kFh", h.f), put("kFw", w.f), put("kOnceH", h.once), put("kOnceW", w.once),
      put("kInD", d.in), put("kInH", h.in), put("kInW", w.in);
  put("kKd", d.kernel), put("kKh", h.kernel), put("kKw", w.kernel), add("kPlaneBytes", t.plane_bytes());
  add("kCopy", p.copy + t.spare * t.row_bytes()), add("kCopyHalf", t.copy_bytes() / (t.input_lo ? 2 : 1)),
      add("kScale", p.scale), add("kExtremes", p.extremes);
  add("kStream", p.stream), add("kWeightScale", p.weight_scale), add("kWeightExtremes", p.weight_extremes);
  put("kWeightExtremeCount", weight_columns(t));
  // The pre-pass's guess at the input's scale and its lo's: with one for both, in the middle of what fits.
  const bool one = t.one_scale() && t.input_lo;
  put("kGuess", one ? 8 : 0), put("kLo", one ? 0 : 11);
  text += "};\n";
  std::vector<int64_t> chunks, taps, deltas, stream;
  for (const Chunk& c : t.chunks) {
    chunks.push_back((int64_t{c.residue} * t.blocks + c.block) * t.plane_bytes() +
                     (int64_t{t.guard} + c.first_row) * t.row_bytes());
  }
  for (const Step& s : t.steps) {
    taps.insert(taps.end(), {s.tap[0], s.tap[1], s.tap[2] | s.block << 16});
    for (const auto& delta : s.delta) deltas.insert(deltas.end(), delta.begin(), delta.end());
  }
  for (const int step : t.stream) {
    const Step& s = t.steps[step];
    stream.insert(stream.end(), {s.tap[0], s.tap[1], s.tap[2] | s.block << 16});
  }
  text += ints(g + "_stream", "int", stream.empty() ? taps : stream);
  text += ints(g + "_chunks", "i64", chunks);
  text += ints(g + "_classes", "int", {t.class_begin.begin(), t.class_begin.end()});
  text += ints(g + "_groups", "int", {t.group_begin.begin(), t.group_begin.end()});
  text += ints(g + "_taps", "int", taps) + ints(g + "_deltas", "int", deltas);
  if (t.by_line) {
    text += ints(g + "_shifts", "int", {t.line_shift.begin(), t.line_shift.end()}) +
            ints(g + "_order", "int", {t.line_order.begin(), t.line_order.end()});
    std::vector<int64_t> last;
    for (const LineLeg& leg : t.legs) {
      for (size_t turn = 0; turn < last_turns(leg); ++turn) {
        for (const auto& tiles : leg.last_tiles) last.push_back(turn < tiles.size() ? tiles[turn] : t.tiles);
      }
    }
    text += ints(g + "_last", "int", last);
    std::vector<int64_t> offsets;  // of every line's taps and variants
    for (int step = 0; step < t.group_begin[1]; ++step) {
      for (const int row : t.steps[step].row_offset) offsets.push_back(int64_t{row} * t.row_bytes());
    }
    text += ints(g + "_offsets", "int", offsets);
  }
  if (t.held) {
    std::vector<int64_t> slabs, groups;
    for (const Owner& o : t.owners) {
      for (const auto& [first, count] : o.slabs) slabs.insert(slabs.end(), {first, count});
      groups.insert(groups.end(), o.groups.begin(), o.groups.end());
    }
    text += ints(g + "_slabs", "int", slabs) + ints(g + "_phases", "int", groups);
  }
  return text;
}

std::string products_text(const std::string& g, const ConvTiles& t) {
  return t.by_line ? ""
         : t.swept ? swept_products(g, t)
         : t.held  ? held_products(g, t)
                   : streamed_products(g, t);
}

// "v3(a, At{{n, c, h, w, 0}})" for coordinates n, c, d, h, w of a value with `spatial` axes.
std::string input_value(const Lowering& l, Id id, Mapped mapped) {
  const Shape& shape = l.graph[id].shape;
  const size_t spatial = spatial_rank(shape);
  const char* axes[] = {"d", mapped == Mapped::kNo ? "h" : "d", "w"};
  std::string at = fmt::format("const At i = At{{{{{}, c", mapped == Mapped::kInput ? "h" : "n");
  for (size_t a = 0; a < 3; ++a) at += fmt::format(", {}", a < spatial ? axes[3 - spatial + a] : "0");
  return fmt::format("[&](int n, int c, int d, int h, int w) {{ {}}}}}; return {}; }}", at,
                     l.source.operand(id, shape, "i"));
}

std::string conv_text(const Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                      const std::string& g, bool fma) {
  if (tiles.by_line) return line_text(l, fusion, tiles, e, g, fma);
  if (tiles.swept) return sweep_text(l, fusion, tiles, e, g, fma);
  const Id x = l.graph[fusion.conv].in[0], kernel = l.graph[fusion.conv].in[1];
  const int groups = static_cast<int>(tiles.phases.size()) / fusion.store_phases;
  const auto& [d, h, w] = tiles.axis;
  const std::string phases =
      fusion.store_phases > 1
          ? fmt::format("const int ed = group / {0}, eh = group % {0}, ew = 0;", h.classes)
          : fmt::format("const int ed = group / {0}, eh = group / {1} % {2}, ew = group % {1};",
                        h.classes * w.classes, w.classes, h.classes);
  const bool held = tiles.held && !fma;
  std::string s = fmt::format(
      "  typedef {} G;\n  constexpr bool fma = {};\n"
      "  const Scale& sx = *(const Scale*)(a.ws + G::kScale);\n"
      "  const Scale& sw = *(const Scale*)(a.packed + G::kWeightScale);\n"
      "  if ({}(sx.other_path | sw.other_path)) return;\n  extern __shared__ u8 raw[];\n"
      "  const int lane = threadIdx.x % 32, t = lane % 4, column0 = blockIdx.y * G::kN + 2 * t;\n"
      "  int columns_of = -1; (void)columns_of;\n"
      "  float* scratch = (float*)raw + threadIdx.x / 128 * 4 * G::kN * 3; (void)scratch;\n",
      g, fma, fma ? "!" : "");
  const bool joins = tiles.joins();
  const char* here = joins ? "here" : "tile";
  std::string begin;
  if (fma) {
    s += fmt::format(
        "  const int owner = 0; (void)owner;\n  const float down = 1.f;\n  auto xv = {};\n  auto wv = {};\n",
        input_value(l, x), input_value(l, kernel));
    s += joins ? "  for (int number = blockIdx.x; number < G::kUnits; number += gridDim.x) {\n"
                 "  const Unit unit = whole_unit<G>(number);\n"
               : "  for (int tile = blockIdx.x; tile < G::kTiles; tile += gridDim.x) {\n";
  } else {
    s += "  const float down = sx.down * sw.down;\n"
         "  const u32 shared = (shared_address(raw) + 1023) & ~1023u;\n";
    if (held) {
      s += held_start(g, tiles);
    } else {
      s += joins ? "  {\n  const int owner = 0; (void)owner;\n  const Unit unit = unit_of<G>(blockIdx.x);\n"
                 : "  {\n  const int owner = 0, tile = blockIdx.x; (void)owner;\n";
      begin =
          fmt::format("  Pipe<G> pipe;\n  pipe.start(a, shared, {1}, {0}_chunks, {0}_groups);\n", g, here);
    }
  }
  auto rows = [](const char* tile) {
    return fmt::format(
        "  Row rows[G::kPieces][2];\n#pragma unroll\n  for (int p = 0; p < G::kPieces; ++p)\n#pragma unroll\n"
        "    for (int r = 0; r < 2; ++r)\n"
        "      rows[p][r] = row_of<G>({}, threadIdx.x / 128 * G::kPieces + p, threadIdx.x / 32 % 4 * 16 + "
        "lane / 4 + 8 * r);\n",
        tile);
  };
  // Where registers are few they are computed when they are needed; many that are stored from the loop, from
  // a tile that the compiler does not know: it would compute all addresses ahead.
  const bool afresh =
      !fma && !held && e.window.empty() && tiles.pieces > 1 && tiles.warpgroups * tiles.resident >= 4;
  const bool late = !fma && (held || tiles.variants < tiles.residues);
  const std::string late_rows = afresh
                                    ? "  int here = tile; asm volatile(\"\" : \"+r\"(here));\n" + rows("here")
                                : late ? rows(here)
                                       : "";
  if (late_rows.empty()) begin += rows(here);
  if (joins) {  // one tile of the unit after the other; what is pooled stays in registers
    s += "  const int tile = unit_tile<G>(unit.number);\n" + e.state + e.pool +
         "#pragma unroll 1\n  for (int plane = unit.first; plane < unit.end; ++plane) {\n"
         "  const int here = tile + plane * G::kTilesPerPlane;\n" +
         begin;
  } else {
    s += begin + e.state + e.pool;
  }
  if (held) s += "  pipe.enter(turn);\n";
  s += fmt::format(
      "#pragma unroll 1\n  for (int k = 0; k < {}; ++k) {{\n    const int group = {};\n"
      "    float sum[{}][G::kSums][G::kNr];\n",
      held ? "group_count" : fmt::format("{}", groups),
      held && tiles.owners.size() > 1 ? "my_groups[k]" : "k", fusion.store_phases);
  if (held) {
    s += "    const bool last = k + 1 == group_count;\n    pipe.take_turn();\n"
         "    held_products(sum, pipe, group, last && tile + stride >= end);\n    pipe.together();\n"
         "    if (last) pipe.leave(a, turn, tile, end, stride);\n";
  } else {
    if (!fma) s += "    pipe.refresh();\n";
    s += fmt::format("#pragma unroll\n    for (int ph = 0; ph < {}; ++ph) {{\n", fusion.store_phases);
    s += fma ? fmt::format(
                   "      products_fma<G>(sum[ph], group * {0} + ph, {1}_classes, {1}_groups, (const "
                   "int(*)[3]){1}_taps, (const int(*)[3]){1}_deltas, rows, xv, wv);\n    }}\n",
                   fusion.store_phases, g)
             : fmt::format("      products(sum[ph], pipe, group * {0} + ph);\n    }}\n", fusion.store_phases);
  }
  s += late_rows;
  s += fmt::format(
      "    {}\n{}#pragma unroll\n    for (int s = 0; s < G::kSums; ++s)\n#pragma unroll\n"
      "      for (int r = 0; r < 2; ++r) {{\n        const int v = s / G::kPieces, p = s % G::kPieces;\n"
      "        const Row& row = rows[p][r];\n"
      "        const int ud = v / (G::kOnceH * G::kOnceW), uh = v / G::kOnceW % G::kOnceH, uw = v % "
      "G::kOnceW;\n{}      }}\n  }}\n",
      phases, e.sums, e.point);
  if (joins) s += (fma ? "  }\n" : "  __syncthreads();\n  pipe.stop();\n  }\n") + rows("tile");
  if (!e.window.empty()) {
    s += late_rows;
    s += fmt::format(
        "#pragma unroll\n  for (int p = 0; p < G::kPieces; ++p)\n#pragma unroll\n"
        "    for (int r = 0; r < 2; ++r) {{\n      const Row& row = rows[p][r];\n{}    }}\n",
        e.window);
  }
  // The scratch of others is where the tile was; everyone must have left it.
  if (!e.finish.empty() && !held) s += "  __syncthreads();\n";
  return s + e.finish + (e.finish.empty() || held ? "  }\n" : "  __syncthreads();\n  }\n");
}

}  // namespace upweave::cuda
