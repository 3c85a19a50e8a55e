#include "engine/cuda/schedule/whole_lines.h"

#include <algorithm>

#include "engine/cuda/axis.h"
#include "engine/cuda/schedule/tile_text.h"

namespace upweave::cuda {
namespace {

// Registers of a thread if a multiprocessor holds that many warpgroups.
int registers_of(int warpgroups) { return std::min(248, 65536 / (128 * warpgroups) / 8 * 8); }

double score(const WholeLines& t) {
  const int together = t.resident * t.warpgroups;
  const double overlap = together >= 3 ? 1.0 : together == 2 ? 0.9 : 0.6;
  return t.efficiency() * overlap * (t.m >= 128 ? 1.0 : 0.8);
}

}  // namespace

int WholeLines::units() const {
  return conv.batch * ((conv.axis[0].windows + window[0] - 1) / window[0]) * tiles_per_plane;
}

// As many lines as the second half of a pool needs. Inputs that no window needs are left out, which often
// makes lines fit.
std::optional<WholeLines> tile_whole_lines(const Convolution& base, const EpilogueNeeds& needs,
                                           double least) {
  const auto& [rest_d, rest_h, rest_w] = needs.rest;
  if (rest_h * rest_w == 1 || base.positions > 1 || needs.reduces) return {};
  const int budget = needs.shared_limit + 1024;
  std::optional<WholeLines> best;
  double best_score = 0;
  for (const int warpgroups : {4, 3, 2, 1}) {
    for (const int subtiles : {1, 2}) {
      Convolution conv = base;
      for (Axis& x : conv.axis) crop(x);
      auto& [d, h, w] = conv.axis;
      const int m = 64 * warpgroups * subtiles;
      int lines = m / w.pitch / rest_h * rest_h;
      while (lines > 0 && m % lines != 0) lines -= rest_h;
      if (lines <= 0) continue;
      w.pitch = m / lines;
      WholeLines t(conv, conv.copy_by_sample());
      if (t.copy.rows > kMaxRows) continue;
      t.lines = lines;
      t.window = needs.rest;
      t.warpgroups = warpgroups;
      t.subtiles = subtiles;
      t.m = m;
      t.tiles_per_plane = ceil_div(h.windows, lines);
      t.tiles = conv.batch * d.windows * t.tiles_per_plane;
      t.copy.guard = guard_rows(conv, t.copy);
      t.segments = place_segments(t, m - 1);
      if (t.shared_bytes() > needs.shared_limit) continue;
      // Sums, parts before promotion, the pool; mma.sync has operands in registers too; 16 for addresses.
      const int sums =
          subtiles * (conv.n / 2) * (needs.store_phases + needs.exact() + 1) + (needs.wgmma ? 0 : 36);
      auto fits = [&](int resident) {
        return sums + 16 <= registers_of(resident * warpgroups) &&
               resident * (t.shared_bytes() + 1024) <= budget;
      };
      if (!fits(1) || t.combined_bytes() > t.tile_shared() + t.weight_shared()) continue;
      t.resident = fits(2) ? 2 : 1;
      while (t.stages < 8 && t.resident * (t.shared_bytes() + conv.stage_bytes() + 1024) <= budget)
        ++t.stages;
      // In whole waves of all blocks; what is left after those would keep few of them busy for a unit's time.
      const int wave = needs.multiprocessors * t.resident;
      t.whole = rest_d == 1 ? t.units() : t.units() / wave * wave;
      const double now = score(t);
      if (t.efficiency() < least || now <= best_score) continue;
      best_score = now;
      best = std::move(t);
    }
  }
  return best;
}

EpilogueForm WholeLines::epilogue_form() const {
  EpilogueForm form;
  form.one_sample = true;
  form.lines = this;
  return form;
}

TileConstants WholeLines::constants() const {
  TileConstants c;
  c.lines = lines, c.width = conv.axis[2].pitch;
  c.segments = static_cast<int>(segments.list.size()), c.segment_rows = segments.rows;
  c.stages = stages;
  return c;
}

std::string WholeLines::own_constants(const Prepared&) const {
  ConstantsText t;
  t.put("kCombineD", window[0]), t.put("kCombineH", window[1]), t.put("kCombineW", window[2]);
  t.put("kUnits", units()), t.put("kWhole", whole), t.put("kWindowLines", lines / window[1]);
  t.put("kWindowsAcross", conv.axis[2].windows / window[2]), t.put("kCombinedWindows", combined_windows());
  t.put("kCombinedPitch", combined_pitch());
  return t.text;
}

std::string WholeLines::products_text(const std::string& g) const {
  return ring_products(conv, segments, false, g);
}

// One tile of the unit after the other; what is pooled stays in registers.
std::string WholeLines::kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                                    const std::string& g, bool fma) const {
  std::string s = start_text(g, fma);
  s += fma ? fma_operands(l, fusion) +
                 "  for (int number = blockIdx.x; number < G::kUnits; number += gridDim.x) {\n"
                 "  const Unit unit = whole_unit<G>(number);\n"
           : tensor_start() +
                 "  {\n  const int partition = 0; (void)partition;\n  const Unit unit = "
                 "unit_of<G>(blockIdx.x);\n";
  s += "  const int tile = unit_tile<G>(unit.number);\n" + e.state + e.pool +
       "#pragma unroll 1\n  for (int plane = unit.first; plane < unit.end; ++plane) {\n"
       "  const int here = tile + plane * G::kTilesPerPlane;\n";
  if (!fma)
    s += fmt::format("  Pipe<G> pipe;\n  pipe.start(a, shared, here, {0}_segments, {0}_groups);\n", g);
  return s + rows_text("here") + group_loop(fusion, fmt::format("{}", conv.phase_groups()), "k") +
         (fma ? fma_sums(fusion, g) : ring_sums(fusion)) + point_text(conv, fusion, e) +
         (fma ? "  }\n" : "  __syncthreads();\n  pipe.stop();\n  }\n") + rows_text("tile") + window_text(e) +
         finish_text(e);
}

}  // namespace upweave::cuda
