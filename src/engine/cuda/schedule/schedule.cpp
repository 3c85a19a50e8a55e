#include "engine/cuda/schedule/schedule.h"

#include <algorithm>

#include "engine/cuda/cost.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/schedule/boxes.h"
#include "engine/cuda/schedule/depth_streaming.h"
#include "engine/cuda/schedule/line_by_line.h"
#include "engine/cuda/schedule/tile_text.h"
#include "engine/cuda/schedule/weight_stationary.h"
#include "engine/cuda/schedule/whole_lines.h"

namespace upweave::cuda {

int Schedule::shared_bytes() const {  // aligned, and barriers
  return 1024 + constants().buffers * tile_shared() + weight_shared() + scratch_bytes() + staged_bytes() +
         256;
}

unsigned Schedule::convert_blocks() const {
  const int64_t rows_per_block = 256 / (conv.ck / 8), rows = copy.rows + 2 * copy.guard;
  return static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block *
                               (conv.components / conv.axis[2].f) * conv.blocks);
}

double Schedule::efficiency() const {
  const auto& [d, h, w] = conv.axis;
  const double useful = static_cast<double>(conv.batch) * d.windows * h.windows * w.windows;
  return useful / (static_cast<double>(tiles) * m);
}

double Schedule::row_steps() const {
  return static_cast<double>(tiles) * m * conv.positions * static_cast<double>(conv.steps.size());
}

bool Schedule::divide(int64_t, int64_t) { return false; }

std::vector<Launch> Schedule::launches(const Launch& one, const Work& work, const Prepared&) const {
  std::vector<Launch> all{one};
  all[0].work = work;
  return all;
}

std::array<int64_t, 2> Schedule::weight_strides() const {
  return {conv.step_bytes(), int64_t{conv.n} * conv.row_bytes()};
}

std::string Schedule::constants_text(const std::string& g, const Prepared& p) const {
  const auto& [d, h, w] = conv.axis;
  const TileConstants c = constants();
  const auto [weight_step, weight_lo] = weight_strides();
  ConstantsText t;
  t.put("kBatch", conv.batch), t.put("kCIn", conv.c_in), t.put("kCOut", conv.c_out), t.put("kCk", conv.ck);
  t.put("kBlocks", conv.blocks), t.put("kN", conv.n), t.put("kNr", conv.n / 2);
  t.put("kColumnBlocks", conv.column_blocks), t.put("kPlane", copy.plane), t.put_long("kRows", copy.rows);
  t.put("kGuard", copy.guard), t.put("kBoxes", c.boxes), t.put("kByLine", c.by_line);
  t.put("kLines", c.lines), t.put("kWidth", std::max(8, c.width)), t.put("kM", m);
  t.put("kThreads", warpgroups * 128), t.put("kSubtiles", subtiles), t.put("kPositions", conv.positions);
  t.put("kSums", subtiles * conv.positions);
  t.put("kTilesPerPlane", tiles_per_plane), t.put("kTilesAcross", c.across), t.put("kTiles", tiles);
  t.put("kComponents", conv.components), t.put("kConvertBlocks", convert_blocks());
  t.put("kSegments", c.segments), t.put("kSegmentBytes", c.segment_rows * conv.row_bytes());
  t.put("kTileShared", tile_shared()), t.put("kTileHalf", tile_half()), t.put("kBuffers", c.buffers);
  t.put("kPartitions", c.parts), t.put("kWeightShared", weight_shared()), t.put("kScratch", scratch_bytes());
  t.put("kPingPong", c.ping_pong), t.put("kStages", c.stages), t.put("kStageBytes", conv.stage_bytes());
  t.put("kStepBytes", conv.step_bytes()), t.put_long("kWeightStep", weight_step);
  t.put_long("kWeightLo", weight_lo), t.put("kGroups", static_cast<int64_t>(conv.group_begin.size()) - 1);
  t.put("kSteps", static_cast<int64_t>(conv.steps.size()));
  t.text += own_constants(p);
  t.put("kDepthStreaming", c.depth_streaming), t.put("kInputLo", conv.input_lo),
      t.put("kWeightsLo", conv.weights_lo);
  t.put("kStorePhases", conv.store_phases);
  t.put("kPitchD", d.pitch), t.put("kPitchH", h.pitch), t.put("kPitchW", w.pitch);
  t.put("kJd", d.windows), t.put("kJh", h.windows), t.put("kJw", w.windows);
  t.put("kFd", d.f), t.put("kFh", h.f), t.put("kFw", w.f), t.put("kOnceH", h.once), t.put("kOnceW", w.once);
  t.put("kInD", d.in), t.put("kInH", h.in), t.put("kInW", w.in);
  t.put("kKd", d.kernel), t.put("kKh", h.kernel), t.put("kKw", w.kernel);
  t.put_long("kPlaneBytes", plane_bytes());
  t.put_long("kCopy", p.copy + copy.spare * conv.row_bytes());
  t.put_long("kCopyHalf", copy_bytes() / (conv.input_lo ? 2 : 1));
  t.put_long("kScale", p.scale), t.put_long("kExtremes", p.extremes), t.put_long("kStream", p.stream);
  t.put_long("kWeightScale", p.weight_scale), t.put_long("kWeightExtremes", p.weight_extremes);
  t.put("kWeightExtremeCount", conv.weight_columns());
  // The pre-pass's guess at the input's scale and its lo's: with one for both, in the middle of what fits.
  const bool one = one_scale() && conv.input_lo;
  t.put("kGuess", one ? 8 : 0), t.put("kLo", one ? 0 : 11);

  std::vector<int64_t> taps, deltas, packed;
  auto tap = [](std::vector<int64_t>& list, const Step& s) {
    list.insert(list.end(), {s.tap[0], s.tap[1], s.tap[2] | s.block << 16});
  };
  for (const Step& s : conv.steps) {
    tap(taps, s);
    for (const auto& delta : s.delta) deltas.insert(deltas.end(), delta.begin(), delta.end());
  }
  for (const int step : stream()) tap(packed, conv.steps[step]);
  return fmt::format("struct {} {{\n{}}};\n", g, t.text) +
         table(g + "_stream", "int", packed.empty() ? taps : packed) +
         table(g + "_segments", "i64", segment_offsets()) +
         table(g + "_phase_begin", "int", conv.phase_begin) + table(g + "_groups", "int", conv.group_begin) +
         table(g + "_taps", "int", taps) + table(g + "_deltas", "int", deltas) + own_tables(g);
}

std::unique_ptr<Schedule> choose_schedule(const ConvGeometry& g, const EpilogueNeeds& needs,
                                          std::string& why) {
  auto own = [](auto&& tiled) {
    using T = std::remove_cvref_t<decltype(*tiled)>;
    return tiled ? std::make_unique<T>(std::move(*tiled)) : std::unique_ptr<T>();
  };
  Convolution conv;
  if (!describe_conv(g, needs, conv, why)) return nullptr;
  auto boxes = own(tile_boxes(conv, needs));
  if (needs.mixes_samples) {
    auto lines = own(tile_line_by_line(g, needs));
    if (lines && (!boxes || lines->row_steps() < boxes->row_steps())) return lines;
  }
  if (!boxes) return why = "no tile fits the multiprocessor's shared memory and registers", nullptr;
  const double useful = boxes->efficiency();
  if (auto lines = own(tile_whole_lines(conv, needs, kWholeLinesRows * useful))) return lines;
  if (!needs.wgmma) return boxes;
  if (auto streaming = own(tile_depth_streaming(conv, needs, kStationaryRows * useful))) return streaming;
  if (auto stationary = own(tile_weight_stationary(conv, needs, kStationaryRows * useful))) return stationary;
  return boxes;
}

RowAt row_at(const Schedule& t, int64_t row) {
  const auto& [d, h, w] = t.conv.axis;
  RowAt r{-1, {-1, -1, -1}};
  if (row < 0 || row >= t.copy.rows) return r;
  const int rest = static_cast<int>(row % t.copy.plane), line = rest / w.pitch;
  const int64_t plane = row / t.copy.plane;
  if (line >= h.pitch) return r;
  r.n = static_cast<int>(plane / d.pitch);
  r.a[0] = static_cast<int>(plane % d.pitch);
  r.a[1] = line;
  r.a[2] = rest % w.pitch;
  return r;
}

}  // namespace upweave::cuda
