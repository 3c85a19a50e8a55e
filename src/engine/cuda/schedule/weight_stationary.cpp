#include "engine/cuda/schedule/weight_stationary.h"

#include <algorithm>

#include "engine/cuda/code.h"
#include "engine/cuda/schedule/tile_text.h"

namespace upweave::cuda {
namespace {

// Whether all weights and the smallest tiles could share a block's memory.
bool weights_fit(const Convolution& conv, const EpilogueNeeds& needs) {
  return static_cast<int64_t>(conv.steps.size()) * conv.step_bytes() <= needs.shared_limit * 2 / 3;
}

double score(const WeightStationary& t) {
  const double overlap = t.warpgroups == 4 ? 1.0 : t.warpgroups == 2 ? 0.9 : 0.6;
  return t.efficiency() * overlap * (t.m >= 256 ? 1.0 : 0.97);
}

// The best one with so many parts.
std::optional<WeightStationary> tile_parts(const Convolution& conv, const EpilogueNeeds& needs, int parts,
                                           double least) {
  std::optional<WeightStationary> best;
  double best_score = 0;
  for (const bool boxes : {true, false}) {
    if (!boxes && needs.one_sample) continue;
    for (const int warpgroups : {4, 2, 1}) {
      for (const int subtiles : {1, 2}) {
        const int sums =
            subtiles * (conv.n / 2) * (conv.positions * conv.store_phases + (needs.pooled ? 1 : 0));
        if (sums > (warpgroups > 2 ? 80 : 160)) continue;
        WeightStationary t(conv, conv.copy_by_sample());
        t.shape.boxes = boxes;
        t.scratch = needs.reduces;
        t.ping_pong = needs.pooled ? 1 : (warpgroups + 1) / 2;
        for (Part& part : share_phases(conv, parts)) t.parts.push_back({std::move(part)});
        int last = 0;
        if (!shape_tile(t, t.shape, warpgroups, subtiles, last)) continue;
        t.copy.guard = guard_rows(conv, t.copy);
        std::vector<int> begin;
        t.segments = place_segments(t, last, part_of_steps(conv, parts_of(t.parts)), parts, begin);
        for (int p = 0; p < parts; ++p) {
          t.parts[p].first_segment = begin[p];
          t.parts[p].segments = begin[p + 1] - begin[p];
        }
        if (t.shared_bytes() > needs.shared_limit) continue;
        const double now = score(t);
        if (t.efficiency() < least || now <= best_score) continue;
        best_score = now;
        best = std::move(t);
      }
    }
  }
  return best;
}

// Which share of the phases and which tiles are this block's, and the loop over them.
std::string loop_text(const std::string& g, const std::vector<WeightStationary::TilePart>& parts) {
  const std::vector<int> groups = each_part(parts, group_count), blocks = each_part(parts, &Part::blocks);
  return code(
      "  const int partition = $partition, block = blockIdx.x - ($blocksBefore), blocks = $blocks;\n"
      "  const int begin = block, end = G::kTiles, stride = blocks;\n"
      "  const int group_count = $groups; const int* my_groups = $g_phases + ($groupsBefore); "
      "(void)my_groups;\n"
      "  if (G::kScratch) scratch = (float*)(raw + (shared - shared_address(raw)) + G::kBuffers * "
      "G::kTileShared + G::kWeightShared) + threadIdx.x / 128 * 4 * G::kN * 3;\n  WeightStationary<G> pipe;\n"
      "  pipe.start(a, shared, begin, end, stride, $g_segments + ($firstSegment), $segments, (const "
      "int(*)[2])$g_step_runs + ($groupsBefore), "
      "$groups);\n#pragma unroll 1\n  for (int tile = begin, wave = 0; tile < end; tile += stride, ++wave) "
      "{\n",
      {{"partition", part_of_block(blocks)},
       {"blocksBefore", before_part(blocks)},
       {"blocks", by_part(blocks)},
       {"groups", by_part(groups)},
       {"g", g},
       {"groupsBefore", before_part(groups)},
       {"firstSegment", by_part(each_part(parts, &WeightStationary::TilePart::first_segment))},
       {"segments", by_part(each_part(parts, &WeightStationary::TilePart::segments))}});
}

}  // namespace

// Fewest parts first: each reads the input again.
std::optional<WeightStationary> tile_weight_stationary(const Convolution& conv, const EpilogueNeeds& needs,
                                                       double least) {
  if (needs.exact()) return {};  // twice the weights leave too little for the tiles
  for (const int parts : {1, 2, 4, 8}) {
    if (parts > (needs.pooled ? 1 : conv.phase_groups())) break;
    // Measured: with all weights in one block and each phase stored, a ring and two blocks are as fast or
    // faster.
    if (parts == 1 && !needs.pooled) {
      if (weights_fit(conv, needs)) return {};
      continue;
    }
    std::optional<WeightStationary> best = tile_parts(conv, needs, parts, least);
    if (!best) continue;
    set_blocks(best->parts,
               share_blocks(conv, parts_of(best->parts), needs.multiprocessors, best->tiles, needs.stores));
    return best;
  }
  return {};
}

int WeightStationary::tile_half() const {
  int most = 0;
  for (const TilePart& part : parts) most = std::max(most, part.segments);
  return shared_bytes_of(most, segments.bytes(conv));
}

EpilogueForm WeightStationary::epilogue_form() const {
  EpilogueForm form;
  form.one_sample = form.row_pairs = shape.boxes;
  form.many_tiles = true;
  return form;
}

TileConstants WeightStationary::constants() const {
  TileConstants c;
  c.boxes = shape.boxes;
  c.lines = shape.lines, c.width = shape.width, c.across = shape.across;
  c.segments = static_cast<int>(segments.list.size()), c.segment_rows = segments.rows;
  c.buffers = kBuffers, c.parts = static_cast<int>(parts.size()), c.ping_pong = ping_pong, c.stages = 2;
  return c;
}

KernelForm WeightStationary::kernel_form() const {
  KernelForm form{0};
  for (const TilePart& part : parts) form.blocks += part.blocks;
  return form;
}

// The products of each group of phases, every address a literal.
std::string WeightStationary::products_text(const std::string& g) const {
  std::string text = fmt::format(
      "DEVICE void stationary_products(float (&sum)[{1}][{0}::kSums][{0}::kNr], WeightStationary<{0}>& pipe, "
      "int group, bool "
      "last) {{\n  switch (group) {{\n",
      g, conv.store_phases);
  for (const TilePart& part : parts) {
    int weights = 0;
    for (const int group : part.groups) {
      std::string calls, after;
      for (int ph = 0; ph < conv.store_phases; ++ph) {
        const int c = group * conv.store_phases + ph;
        const int from = conv.group_begin[conv.phase_begin[c]],
                  to = conv.group_begin[conv.phase_begin[c + 1]];
        if (from == to) {  // no tap reaches these outputs
          after += fmt::format("      for (auto& s : sum[{}]) for (float& x : s) x = 0.f;\n", ph);
          continue;
        }
        calls +=
            code("      stationary_steps<$g, $count>(sum[$phase], pipe, $weights, {$offsets});\n",
                 {{"g", g},
                  {"count", to - from},
                  {"phase", ph},
                  {"weights", weights * conv.step_bytes()},
                  {"offsets", fmt::format("{}", fmt::join(byte_offsets(conv, segments, from, to), ", "))}});
        after += fmt::format("      hold(sum[{}]);\n", ph);
        weights += to - from;
      }
      // Between the first product and the wait there is no branch: the compiler would serialise them.
      text += fmt::format(
          "    case {}:\n      wgmma_fence();\n{}      wgmma_commit();\n      pipe.order_arrive(last);\n"
          "      wgmma_wait();\n{}      break;\n",
          group, calls, after);
    }
  }
  return text + "  }\n}\n";
}

std::string WeightStationary::kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                                          const std::string& g, bool fma) const {
  if (fma) return fma_text(l, fusion, conv, e, g);
  // Registers are few: rows are computed when they are needed.
  std::string s =
      start_text(g, false) + tensor_start() + loop_text(g, parts) + e.state + e.pool +
      "  pipe.enter(wave);\n" + group_loop(fusion, "group_count", parts.size() > 1 ? "my_groups[k]" : "k") +
      "    const bool last = k + 1 == group_count;\n    pipe.order_wait();\n"
      "    stationary_products(sum, pipe, group, last && tile + stride >= end);\n    pipe.together();\n"
      "    if (last) pipe.leave(a, wave, tile, end, stride);\n" +
      rows_text("tile") + point_text(conv, fusion, e);
  if (!e.window.empty()) s += rows_text("tile") + window_text(e);
  return s + e.finish + "  }\n";
}

}  // namespace upweave::cuda
