#include <algorithm>

#include "engine/cuda/lower.h"
#include "engine/cuda/tile_axis.h"

// Sweeps through the depth, for a convolution of stride two along the width whose outputs are stored, or
// summed over space. A block keeps the weights of its share of the (depth, height) phases and goes through
// the depth of one column of tiles after another; of each tile only the plane that the one before did not
// read is loaded.
//
// The 64 rows of a piece are 4 lines of 16 windows, of each line first the 8 even ones, then the 8 odd ones:
// a thread has rows r and r + 8, so both width phases of two neighbouring windows, which are four outputs
// side by side. For a shift by an even number of windows even rows read even places, for an odd one odd
// places. So shared memory has each line twice: as pairs that begin with an even place, and as pairs that
// begin with an odd one. In both, eight-row groups are the same distance apart, as wgmma needs them.
namespace upweave::cuda {
namespace {

constexpr int kMaxLines = 8, kMaxWidth = 32;  // of a tile

// Steps in the stream: of each group of phases first the taps that both width phases have at the same shift,
// phase beside phase, so that one product of twice the columns takes both; then the others.
void order_stream(ConvTiles& t) {
  for (size_t c = 0; c + 1 < t.class_begin.size(); c += 2) {
    const int first = t.group_begin[t.class_begin[c]], middle = t.group_begin[t.class_begin[c + 1]],
              end = t.group_begin[t.class_begin[c + 2]];
    const size_t before = t.stream.size();
    std::vector<int> alone;
    std::vector<bool> taken(end - middle, false);
    for (int s = first; s < middle; ++s) {
      int other = middle;
      while (other < end && (taken[other - middle] || t.steps[other].delta != t.steps[s].delta ||
                             t.steps[other].block != t.steps[s].block))
        ++other;
      if (other == end) {
        alone.push_back(s);
      } else {
        taken[other - middle] = true;
        t.stream.insert(t.stream.end(), {s, other});
      }
    }
    for (int s = middle; s < end; ++s) {
      if (!taken[s - middle]) alone.push_back(s);
    }
    t.shared_taps.push_back(static_cast<int>(t.stream.size() - before) / 2);
    t.stream.insert(t.stream.end(), alone.begin(), alone.end());
  }
}

// Strict sums reach float32 after at most 128 terms: those of shared taps, and those of the others.
bool few_terms(const ConvTiles& t) {
  for (size_t c = 0; c + 1 < t.class_begin.size(); ++c) {
    const int steps = t.group_begin[t.class_begin[c + 1]] - t.group_begin[t.class_begin[c]];
    const int shared = t.shared_taps[c / 2];
    if (std::max(shared, steps - shared) * t.ck > 128) return false;
  }
  return true;
}

// Which lines and planes each owner's taps read, and the two views of the width.
void place_views(ConvTiles& t) {
  int lines = 1, highest[2] = {};
  t.planes = 1;
  bool any[2] = {};
  for (size_t o = 0; o < t.owners.size(); ++o) {
    Owner& owner = t.owners[o];
    int lo[2] = {}, hi[2] = {};
    bool begun = false;
    for (const Step& step : t.steps) {
      if (step.owner != static_cast<int>(o)) continue;
      const auto& [d, h, w] = step.delta[0];
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
    owner.depth = lo[0];
    owner.line = lo[1];
    owner.planes = hi[0] - lo[0] + 1;
    t.planes = std::max(t.planes, owner.planes);
    lines = std::max(lines, hi[1] - lo[1] + 1);
  }
  t.tile_lines = t.lines + lines - 1;
  t.part_bytes = 0;
  for (int odd = 0; odd < 2; ++odd) {
    PairView& v = t.views[odd];
    v.pairs = any[odd] ? t.width / 2 + (highest[odd] - v.first) / 2 : 0;
    v.at = t.part_bytes;
    t.part_bytes += round_up(t.tile_lines * 2 * v.pairs * t.row_bytes(), 1024);  // a swizzle's pattern
  }
}

// Owners with as many blocks each are side by side anyway.
bool in_step(const ConvTiles& t) {
  return t.owners.size() > 1 &&
         std::ranges::all_of(t.owners, [&](const Owner& o) { return o.blocks == t.owners[0].blocks; });
}

}  // namespace

bool tile_sweep(const ConvTiles& base, const TileWish& wish, double least, ConvTiles& best) {
  const bool exact = wish.input_lo || wish.weights_lo;
  if (!wish.sweeps || wish.pooled || base.store_phases != 2 || base.column_blocks != 1 || base.n > 64 ||
      base.variants != 1)
    return false;
  ConvTiles form = base;
  form.swept = form.held = form.boxes = true;
  form.pieces = 1;
  form.warpgroups = exact ? 3 : 4;
  form.takers = exact ? 3 : wish.stores ? 2 : 1;  // without stores turns cost more than they give
  // Whole lines in a row, so that a plane is some lines on.
  const auto& [d, h, w] = base.axis;
  form.plane = h.pitch * w.pitch;
  form.rows = static_cast<int64_t>(base.batch) * d.pitch * form.plane;
  // The same for all tiles, so that passes share one copy.
  form.lines_before = std::max(0, -d.lo) * h.pitch + std::max(0, -h.lo);
  form.guard = round_up((form.lines_before + h.hi - h.lo + 2 * kMaxLines + 2) * w.pitch + 2 * kMaxWidth, 8);
  form.scratch = wish.reduces;
  form.run = d.windows;
  order_stream(form);
  if (exact && !few_terms(form)) return false;
  const int groups = static_cast<int>(base.phases.size()) / 2;
  bool found = false;
  for (const auto& [lines, width] : {std::array{kMaxLines, kMaxWidth}, {8, 16}, {4, 32}, {4, 16}}) {
    for (const int owners : {1, 2, 4}) {
      if (owners > groups) break;
      ConvTiles t = form;
      t.lines = lines;
      t.width = width;
      t.m = lines * width;
      t.tiles_across = ceil_div(w.windows, width);
      t.tiles_per_plane = ceil_div(h.windows, lines) * t.tiles_across;
      t.tiles = t.batch * d.windows * t.tiles_per_plane;
      if (t.efficiency() < (found ? 1.05 * best.efficiency() : least)) break;
      share_phases(t, owners);
      place_views(t);
      t.staging = exact && wish.float_rows && t.c_out % 16 == 0 ? 16 * 128 : 0;
      t.buffers = t.planes + 1;
      if (t.shared_bytes() > wish.shared_limit) continue;
      while (t.buffers < 4 && t.shared_bytes() + t.tile_shared() <= wish.shared_limit) ++t.buffers;
      share_blocks(t, wish);
      reserve_slots(t, t.blocks_by_owner(), t.batch);
      if (wish.stores && !wish.reduces && !in_step(t)) {
        std::vector<Share> shares;
        for (const Owner& owner : t.owners) shares.push_back({t.tiles, owner.blocks});
        go_abreast(t, shares);
      }
      best = std::move(t);
      found = true;
      break;
    }
  }
  return found;
}

std::vector<TensorView> sweep_views(const ConvTiles& t, const Prepared& p) {
  const auto& [d, h, w] = t.axis;
  const auto row = static_cast<uint64_t>(t.row_bytes());
  std::vector<TensorView> views(3);
  for (size_t odd = 0; odd < 2; ++odd) {
    const PairView& v = t.views[odd];
    TensorView& view = views[odd];
    view.used = v.pairs > 0;
    view.offset = p.copy + (t.guard - int64_t{t.lines_before} * w.pitch + v.first) * t.row_bytes();
    view.swizzle = t.row_bytes();
    const auto lines = static_cast<uint64_t>(t.batch) * d.pitch * h.pitch + t.lines_before + t.tile_lines;
    const auto pairs = static_cast<uint64_t>(t.tiles_across) * t.width / 2 + v.pairs;
    view.extents = {static_cast<uint64_t>(t.ck), pairs, 2, lines,
                    static_cast<uint64_t>(t.blocks) * (t.input_lo ? 2 : 1)};
    view.strides = {2 * row, row, w.pitch * row, static_cast<uint64_t>(t.plane_bytes())};
    view.box = {static_cast<uint32_t>(t.ck), static_cast<uint32_t>(v.pairs), 2,
                static_cast<uint32_t>(t.tile_lines), 1};
  }
  if (t.staging > 0) {
    TensorView& view = views[2];
    const auto width = static_cast<uint64_t>(w.out), height = static_cast<uint64_t>(h.out),
               depth = static_cast<uint64_t>(d.out);
    view.used = view.output = view.floats = true;
    view.swizzle = 128;
    view.extents = {width, height, depth, static_cast<uint64_t>(t.batch) * t.c_out};
    view.strides = {width * 4, width * height * 4, width * height * depth * 4};
    view.box = {32, 1, 1, 16};
  }
  return views;
}

}  // namespace upweave::cuda
