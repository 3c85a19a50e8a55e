#include "engine/cuda/schedule/boxes.h"

#include <algorithm>

#include "engine/cuda/schedule/tile_text.h"

namespace upweave::cuda {
namespace {

// Of two that waste as many rows, the one that reads the weights less often and hides more waits is better.
double score(const Boxes& t, bool wide, bool serial) {
  const double reuse = t.m >= 256 ? 1.0 : t.m >= 128 ? 0.98 : 0.8;
  const double overlap = t.warpgroups * t.resident >= 4 ? 1.0 : 0.8;
  const double columns = wide ? 1.1 : 1.0, again = serial ? 0.95 : 1.0;
  return t.efficiency() * reuse * overlap * columns * again;
}

}  // namespace

// Boxes waste nothing when the extents are multiples of 8, lines in a row waste the gaps. The larger tile
// that fits wins among equals: it reads the weights less often.
std::optional<Boxes> tile_boxes(const Convolution& base, const EpilogueNeeds& needs) {
  const int taps = base.axis[0].kernel * base.axis[1].kernel * base.axis[2].kernel * base.blocks;
  std::optional<Boxes> best;
  double best_score = 0;
  for (const int form : {0, 1, 2, 3}) {
    // Twice the columns: fewer reads of the rows for as many products. One position of a pool after the other
    // makes room for them, and asks for the weights again.
    const bool wide = form & 1, serial = form & 2;
    Convolution conv = base;
    if (wide && !widen(conv)) continue;
    if (serial && (!needs.pooled || !needs.wgmma || !serialize(conv))) continue;
    if (wide || serial) list_steps(conv);
    for (const bool boxes : {true, false}) {
      if (!boxes && needs.one_sample) continue;
      for (const int warpgroups : {1, 2, 3, 4}) {
        for (const int subtiles : {1, 2, 3}) {
          // Registers for sums: phases of the width that are stored together, parts before promotion, the
          // pool.
          const bool exact = needs.exact();
          const int sums = subtiles * (conv.n / 2) *
                           (conv.positions * (needs.store_phases + exact) + (needs.pooled ? 1 : 0));
          // Four warpgroups of 128 registers a thread, or two of 255; many steps want registers for their
          // addresses.
          const int operands = needs.wgmma ? 0 : 36;
          const bool few = !serial && sums + operands <=
                                          (taps <= 32 && (!exact || needs.pooled || !needs.wgmma) ? 96 : 80);
          if (!few && (warpgroups > 2 || sums > (serial ? 192 : 160))) continue;
          if (serial && warpgroups < 2) continue;
          Boxes t(conv, conv.copy_by_sample());
          t.shape.boxes = boxes;
          t.completes_sums = needs.wgmma && exact &&
                             (!needs.pooled || (few && (!needs.whole_columns || conv.most_groups() > 2)));
          int last = 0;
          if (!shape_tile(t, t.shape, warpgroups, subtiles, last)) continue;
          t.copy.guard = guard_rows(conv, t.copy);
          t.segments = place_segments(t, last);
          if (t.shared_bytes() > needs.shared_limit) continue;
          // Two blocks a multiprocessor hide each other's waits; four warpgroups in one do so less well.
          const int budget = needs.shared_limit + 1024;  // each block costs 1 KB more than it asks for
          t.resident = std::max(1, std::min((few ? 4 : 2) / warpgroups, budget / (t.shared_bytes() + 1024)));
          // The rest of the memory keeps weights ahead, so that warpgroups need not go in step.
          while (t.stages < 8 && t.resident * (t.shared_bytes() + conv.stage_bytes() + 1024) <= budget)
            ++t.stages;
          if (const double now = score(t, wide, serial); now > best_score) {
            best_score = now;
            best = std::move(t);
          }
        }
      }
    }
  }
  return best;
}

EpilogueForm Boxes::epilogue_form() const {
  EpilogueForm form;
  form.one_sample = form.row_pairs = shape.boxes;
  return form;
}

TileConstants Boxes::constants() const {
  TileConstants c;
  c.boxes = shape.boxes;
  c.lines = shape.lines, c.width = shape.width, c.across = shape.across;
  c.segments = static_cast<int>(segments.list.size()), c.segment_rows = segments.rows;
  c.stages = stages;
  return c;
}

std::string Boxes::products_text(const std::string& g) const {
  return ring_products(conv, segments, completes_sums, g);
}

std::string Boxes::kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                               const std::string& g, bool fma) const {
  if (fma) return fma_text(l, fusion, conv, e, g);
  // Where registers are few rows are computed when they are needed; many that are stored from the loop, from
  // a tile that the compiler does not know: it would compute all addresses ahead.
  const bool afresh = e.window.empty() && subtiles > 1 && warpgroups * resident >= 4;
  const bool late = conv.positions < conv.components;
  const std::string rows = afresh
                               ? "  int here = tile; asm volatile(\"\" : \"+r\"(here));\n" + rows_text("here")
                               : rows_text("tile");
  std::string s =
      start_text(g, false) + tensor_start() +
      "  {\n  const int partition = 0, tile = blockIdx.x; (void)partition;\n" +
      fmt::format("  Pipe<G> pipe;\n  pipe.start(a, shared, tile, {0}_segments, {0}_groups);\n", g);
  const bool needed = afresh || late;
  s += (needed ? "" : rows) + e.state + e.pool +
       group_loop(fusion, fmt::format("{}", conv.phase_groups()), "k") + ring_sums(fusion) +
       (needed ? rows : "") + point_text(conv, fusion, e);
  if (!e.window.empty() && needed) s += rows;
  return s + window_text(e) + finish_text(e);
}

}  // namespace upweave::cuda
