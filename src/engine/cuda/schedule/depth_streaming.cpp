#include "engine/cuda/schedule/depth_streaming.h"

#include <algorithm>

#include "engine/cuda/axis.h"
#include "engine/cuda/cost.h"
#include "engine/cuda/lower.h"

namespace upweave::cuda {
namespace {

constexpr int kMaxLines = 8, kMaxWidth = 32;  // of a tile

// Steps in the stream: of each group of phases first the taps that both width phases have at the same shift,
// phase beside phase, so that one product of twice the columns takes both; then the others.
void order_stream(DepthStreaming& t) {
  for (size_t c = 0; c + 1 < t.conv.phase_begin.size(); c += 2) {
    const int first = t.conv.group_begin[t.conv.phase_begin[c]],
              middle = t.conv.group_begin[t.conv.phase_begin[c + 1]],
              end = t.conv.group_begin[t.conv.phase_begin[c + 2]];
    const size_t before = t.order.size();
    std::vector<int> alone;
    std::vector<bool> taken(end - middle, false);
    for (int s = first; s < middle; ++s) {
      int other = middle;
      while (other < end && (taken[other - middle] || t.conv.steps[other].delta != t.conv.steps[s].delta ||
                             t.conv.steps[other].block != t.conv.steps[s].block))
        ++other;
      if (other == end) {
        alone.push_back(s);
      } else {
        taken[other - middle] = true;
        t.order.insert(t.order.end(), {s, other});
      }
    }
    for (int s = middle; s < end; ++s) {
      if (!taken[s - middle]) alone.push_back(s);
    }
    t.shared_taps.push_back(static_cast<int>(t.order.size() - before) / 2);
    t.order.insert(t.order.end(), alone.begin(), alone.end());
  }
}

// Strict sums reach float32 after at most 128 terms: those of shared taps, and those of the others.
bool few_terms(const DepthStreaming& t) {
  for (size_t c = 0; c + 1 < t.conv.phase_begin.size(); ++c) {
    const int steps =
        t.conv.group_begin[t.conv.phase_begin[c + 1]] - t.conv.group_begin[t.conv.phase_begin[c]];
    const int shared = t.shared_taps[c / 2];
    if (std::max(shared, steps - shared) * t.conv.ck > 128) return false;
  }
  return true;
}

// Which lines and planes each part's taps read, and the two views of the width.
void place_views(DepthStreaming& t) {
  int lines = 1, highest[2] = {};
  t.planes = 1;
  bool any[2] = {};
  const std::vector<int> part_of = part_of_steps(t.conv, parts_of(t.parts));
  for (size_t p = 0; p < t.parts.size(); ++p) {
    DepthStreaming::ColumnPart& part = t.parts[p];
    int lo[2] = {}, hi[2] = {};
    bool begun = false;
    for (size_t s = 0; s < t.conv.steps.size(); ++s) {
      if (part_of[s] != static_cast<int>(p)) continue;
      const auto& [d, h, w] = t.conv.steps[s].delta[0];
      const int at[2] = {d, h}, odd = modulo(w, 2);
      for (int a = 0; a < 2; ++a) {
        lo[a] = begun ? std::min(lo[a], at[a]) : at[a];
        hi[a] = begun ? std::max(hi[a], at[a]) : at[a];
      }
      begun = true;
      t.views[odd].first = any[odd] ? std::min(t.views[odd].first, w) : w;
      highest[odd] = any[odd] ? std::max(highest[odd], w) : w;
      any[odd] = true;
    }
    part.depth = lo[0];
    part.line = lo[1];
    part.planes = hi[0] - lo[0] + 1;
    t.planes = std::max(t.planes, part.planes);
    lines = std::max(lines, hi[1] - lo[1] + 1);
  }
  t.tile_lines = t.lines + lines - 1;
  t.part_bytes = 0;
  for (int odd = 0; odd < 2; ++odd) {
    DepthStreaming::PairView& v = t.views[odd];
    v.pairs = any[odd] ? t.width / 2 + (highest[odd] - v.first) / 2 : 0;
    v.at = t.part_bytes;
    t.part_bytes += round_up(shared_bytes_of(int64_t{2} * t.tile_lines * v.pairs, t.conv.row_bytes()),
                             1024);  // a swizzle's pattern
  }
}

// Parts with as many blocks each are side by side anyway.
bool in_step(const DepthStreaming& t) {
  return t.parts.size() > 1 &&
         std::ranges::all_of(t.parts, [&](const Part& p) { return p.blocks == t.parts[0].blocks; });
}

}  // namespace

std::optional<DepthStreaming> tile_depth_streaming(const Convolution& conv, const EpilogueNeeds& needs,
                                                   double least) {
  const bool exact = needs.exact();
  if (!needs.own_copy || needs.pooled || conv.store_phases != 2 || conv.column_blocks != 1 || conv.n > 64 ||
      conv.positions != 1)
    return {};
  DepthStreaming form(conv, {});
  form.warpgroups = exact ? 3 : 4;
  form.ping_pong = exact ? 3 : needs.stores ? 2 : 1;  // without stores ping-pong costs more than it gives
  // Whole lines in a row, so that a plane is some lines on.
  const auto& [d, h, w] = conv.axis;
  form.copy.plane = h.pitch * w.pitch;
  form.copy.rows = static_cast<int64_t>(conv.batch) * d.pitch * form.copy.plane;
  // The same for all tiles, so that passes share one copy.
  form.lines_before = std::max(0, -d.lo) * h.pitch + std::max(0, -h.lo);
  form.copy.guard =
      round_up((form.lines_before + h.hi - h.lo + 2 * kMaxLines + 2) * w.pitch + 2 * kMaxWidth, 8);
  form.scratch = needs.reduces;
  form.run = d.windows;
  order_stream(form);
  if (exact && !few_terms(form)) return {};
  std::optional<DepthStreaming> best;
  for (const auto& [lines, width] : {std::array{kMaxLines, kMaxWidth}, {8, 16}, {4, 32}, {4, 16}}) {
    for (const int parts : {1, 2, 4}) {
      if (parts > conv.phase_groups()) break;
      DepthStreaming t = form;
      t.lines = lines;
      t.width = width;
      t.m = lines * width;
      t.across = ceil_div(w.windows, width);
      t.tiles_per_plane = ceil_div(h.windows, lines) * t.across;
      t.tiles = conv.batch * d.windows * t.tiles_per_plane;
      if (t.efficiency() < (best ? kSmallerTile * best->efficiency() : least)) break;
      for (Part& part : share_phases(conv, parts)) t.parts.push_back({std::move(part)});
      place_views(t);
      t.staging = exact && needs.float_rows && conv.c_out % 16 == 0 ? 16 * 128 : 0;
      t.buffers = t.planes + 1;
      if (t.shared_bytes() > needs.shared_limit) continue;
      while (t.buffers < 4 && t.shared_bytes() + t.tile_shared() <= needs.shared_limit) ++t.buffers;
      const std::vector<int> blocks =
          share_blocks(conv, parts_of(t.parts), needs.multiprocessors, t.tiles, needs.stores);
      set_blocks(t.parts, blocks);
      t.reserve_slots(blocks, conv.batch);
      if (needs.stores && !needs.reduces && !in_step(t)) {
        std::vector<DepthStreaming::Share> shares;
        for (const int mine : blocks) shares.push_back({t.tiles, mine});
        t.go_side_by_side(shares);
      }
      best = std::move(t);
      break;
    }
  }
  return best;
}

void DepthStreaming::go_side_by_side(const std::vector<Share>& shares) {
  const int depths = conv.axis[0].windows;
  side_by_side = false;
  run = depths;
  for (const int depth : {4, 3, 2, 1}) {  // longer ones give no more, and are harder to share
    if (depths % depth != 0) continue;
    const bool even = std::ranges::all_of(shares, [&](const Share& s) {
      return s.jobs / depth >= s.blocks &&
             ceil_div(s.jobs / depth, s.blocks) * depth * s.blocks <= kUneven * s.jobs;
    });
    if (!even) continue;
    side_by_side = true;
    run = depth;
    return;
  }
}

void DepthStreaming::reserve_slots(const std::vector<int>& blocks, int samples) {
  int before = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    parts[p].slots = std::max(parts[p].slots, ceil_div(blocks[p], samples) + 1);
    parts[p].first_slot = before;
    before += parts[p].slots;
  }
}

double DepthStreaming::seconds_a_voxel() const { return kStreamedVoxel; }

EpilogueForm DepthStreaming::epilogue_form() const {
  EpilogueForm form;
  form.sum = "sum[ph % 2][0][i / 2 * 4 + ph / 2 * 2 + i % 2]";
  form.windows = 2;
  form.recomputes = form.parts_by_sample = form.one_sample = form.many_tiles = true;
  form.staged = staging > 0;
  return form;
}

TileConstants DepthStreaming::constants() const {
  TileConstants c;
  c.boxes = c.depth_streaming = true;
  c.lines = lines, c.width = width, c.across = across;
  c.buffers = buffers, c.parts = static_cast<int>(parts.size()), c.ping_pong = ping_pong;
  return c;
}

KernelForm DepthStreaming::kernel_form() const {
  KernelForm form{0, true, ", const __grid_constant__ Maps maps"};
  for (const ColumnPart& part : parts) form.blocks += part.blocks;
  return form;
}

std::vector<Launch> DepthStreaming::launches(const Launch& one, const Work& work, const Prepared& p) const {
  std::vector<Launch> all = Schedule::launches(one, work, p);
  all[0].views = tensor_views(p);
  return all;
}

std::array<int64_t, 2> DepthStreaming::weight_strides() const {  // hi of all steps, then lo
  const int64_t half = int64_t{conv.n} * conv.row_bytes();
  return {half, half * static_cast<int64_t>(conv.steps.size())};
}

std::vector<TensorView> DepthStreaming::tensor_views(const Prepared& p) const {
  const auto& [d, h, w] = conv.axis;
  const auto row = static_cast<uint64_t>(conv.row_bytes());
  std::vector<TensorView> result(3);
  for (size_t odd = 0; odd < 2; ++odd) {
    const PairView& v = views[odd];
    TensorView& view = result[odd];
    view.used = v.pairs > 0;
    view.offset = p.copy + (copy.guard - int64_t{lines_before} * w.pitch + v.first) * conv.row_bytes();
    view.swizzle = conv.row_bytes();
    const auto all_lines = static_cast<uint64_t>(conv.batch) * d.pitch * h.pitch + lines_before + tile_lines;
    const auto pairs = static_cast<uint64_t>(across) * width / 2 + v.pairs;
    view.extents = {static_cast<uint64_t>(conv.ck), pairs, 2, all_lines,
                    static_cast<uint64_t>(conv.blocks) * (conv.input_lo ? 2 : 1)};
    view.strides = {2 * row, row, w.pitch * row, static_cast<uint64_t>(plane_bytes())};
    view.box = {static_cast<uint32_t>(conv.ck), static_cast<uint32_t>(v.pairs), 2,
                static_cast<uint32_t>(tile_lines), 1};
  }
  if (staging > 0) {
    TensorView& view = result[2];
    const auto out_w = static_cast<uint64_t>(w.out), out_h = static_cast<uint64_t>(h.out),
               out_d = static_cast<uint64_t>(d.out);
    view.used = view.output = view.floats = true;
    view.swizzle = 128;
    view.extents = {out_w, out_h, out_d, static_cast<uint64_t>(conv.batch) * conv.c_out};
    view.strides = {out_w * 4, out_w * out_h * 4, out_w * out_h * out_d * 4};
    view.box = {32, 1, 1, 16};
  }
  return result;
}

}  // namespace upweave::cuda
