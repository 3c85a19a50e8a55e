#include "engine/cuda/conv_tiles.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cuda/tile_axis.h"

namespace upweave::cuda {
namespace {

// Columns of one tile: wgmma takes multiples of 8, the loads of B pairs of 8.
bool make_columns(ConvTiles& t, const TileWish& wish, std::string& why) {
  const int all = round_up(t.c_out, 16);
  if (all <= 64 || (all <= 128 && wish.whole_columns)) {
    t.n = all;
    t.column_blocks = 1;
    return true;
  }
  if (wish.whole_columns) {
    why = fmt::format("{} output channels in one tile are more than 128", t.c_out);
    return false;
  }
  t.n = 64;
  t.column_blocks = ceil_div(all, 64);
  return true;
}

void make_rows(ConvTiles& t) {
  const auto& [d, h, w] = t.axis;
  t.plane = round_up(h.pitch * w.pitch, 8);
  t.rows = static_cast<int64_t>(t.batch) * d.pitch * t.plane;
  t.residues = d.f * h.f * w.f;
  t.variants = d.once * h.once * w.once;
}

// Steps: class by class, tap by tap, block by block; and the groups that they are promoted in.
void list_steps(ConvTiles& t) {
  const auto& [d, h, w] = t.axis;
  t.steps.clear();
  t.phases.clear();
  t.class_begin.assign(1, 0);
  t.group_begin.assign(1, 0);
  for (int ed = 0; ed < d.classes; ++ed) {
    for (int eh = 0; eh < h.classes; ++eh) {
      for (int ew = 0; ew < w.classes; ++ew) {
        t.phases.push_back({ed, eh, ew});
        const size_t first = t.steps.size();
        for (int kd = 0; kd < d.kernel; ++kd) {
          for (int kh = 0; kh < h.kernel; ++kh) {
            for (int kw = 0; kw < w.kernel; ++kw) {
              int dd = 0, dh = 0, dw = 0;
              if (!reaches(d, ed, kd, dd) || !reaches(h, eh, kh, dh) || !reaches(w, ew, kw, dw)) continue;
              for (int block = 0; block < t.blocks; ++block) {
                Step step;
                step.block = block;
                step.tap = {kd, kh, kw};
                for (int v = 0; v < t.variants; ++v) {
                  const int ud = v / (h.once * w.once), uh = v / w.once % h.once, uw = v % w.once;
                  step.delta.push_back({dd + ud, dh + uh, dw + uw});
                }
                t.steps.push_back(std::move(step));
              }
            }
          }
        }
        // Sums are promoted after at most 128 terms, so a group has no more; and no more than 32 KB if it
        // can.
        const bool exact = t.input_lo || t.weights_lo;
        const int count = static_cast<int>(t.steps.size() - first);
        const int per_group = std::max(1, std::min(128 / t.ck, exact ? 8 : (32 << 10) / t.slab_bytes()));
        for (int at = 0; at < count; at += per_group) {
          t.group_begin.push_back(static_cast<int>(first) + std::min(count, at + per_group));
        }
        t.class_begin.push_back(static_cast<int>(t.group_begin.size()) - 1);
      }
    }
  }
  t.group_max = 1;
  for (size_t g = 0; g + 1 < t.group_begin.size(); ++g) {
    t.group_max = std::max(t.group_max, t.group_begin[g + 1] - t.group_begin[g]);
  }
}

// Of one class.
int most_groups(const ConvTiles& t) {
  int most = 0;
  for (size_t c = 0; c + 1 < t.class_begin.size(); ++c)
    most = std::max(most, t.class_begin[c + 1] - t.class_begin[c]);
  return most;
}

// Which runs of rows each owner's taps read: one per channel block, residue and depth shift. `last` is the
// tile's highest row, counted from its lowest.
void place_chunks(ConvTiles& t, int last) {
  const auto& [d, h, w] = t.axis;
  t.chunks.clear();
  t.chunk_rows = 8;
  struct Reach {
    int d_lo = 0, d_hi = 0, low = 0, shift = 0;
  };
  std::vector<Reach> reach;
  for (size_t o = 0; o < t.owners.size(); ++o) {
    int lo[3] = {}, hi[3] = {};
    bool any = false;
    for (const Step& step : t.steps) {
      if (step.owner != static_cast<int>(o)) continue;
      for (const auto& delta : step.delta) {
        for (int a = 0; a < 3; ++a) {
          const int at = floor_div(delta[a], t.axis[a].f);
          lo[a] = any ? std::min(lo[a], at) : at;
          hi[a] = any ? std::max(hi[a], at) : at;
        }
        any = true;
      }
    }
    const int low = lo[1] * w.pitch + lo[2], high = hi[1] * w.pitch + hi[2], shift = modulo(low, 8);
    t.chunk_rows = std::max(t.chunk_rows, round_up(shift + last + 1 + high - low, 8));
    t.owners[o].first_chunk = static_cast<int>(t.chunks.size());
    for (int block = 0; block < t.blocks; ++block) {
      for (int residue = 0; residue < t.residues; ++residue) {
        for (int ad = lo[0]; ad <= hi[0]; ++ad)
          t.chunks.push_back({residue, block, ad * t.plane + low - shift});
      }
    }
    t.owners[o].chunks = static_cast<int>(t.chunks.size()) - t.owners[o].first_chunk;
    reach.push_back({lo[0], hi[0], low, shift});
  }
  for (Step& step : t.steps) {
    const Reach& r = reach[step.owner];
    step.row_offset.clear();
    for (const auto& [id, ih, iw] : step.delta) {
      const int residue = (modulo(id, d.f) * h.f + modulo(ih, h.f)) * w.f + modulo(iw, w.f);
      const int chunk =
          (step.block * t.residues + residue) * (r.d_hi - r.d_lo + 1) + floor_div(id, d.f) - r.d_lo;
      step.row_offset.push_back(chunk * t.chunk_rows + r.shift + floor_div(ih, h.f) * w.pitch +
                                floor_div(iw, w.f) - r.low);
    }
  }
}

// The tile's shape for `pieces` pieces a warpgroup; false if it does not fit.
bool shape_tile(ConvTiles& t, const TileWish& wish, int warpgroups, int pieces) {
  const auto& [d, h, w] = t.axis;
  t.warpgroups = warpgroups;
  t.pieces = pieces;
  t.m = 64 * warpgroups * pieces;
  int last = t.m - 1;
  if (t.boxes) {
    // As wide as it can be: lines cost the gaps between them.
    for (t.width = std::min(t.m / 8, round_up(w.windows, 8)); t.width >= 8; t.width -= 8) {
      if (t.m % (t.width * 8) == 0 && round_up(w.windows, 8) % t.width == 0) break;
    }
    if (t.width < 8) return false;
    t.lines = t.m / t.width;
    if (t.lines > round_up(h.windows, 8)) return false;
    t.tiles_across = ceil_div(w.windows, t.width);
    t.tiles_per_plane = ceil_div(h.windows, t.lines) * t.tiles_across;
    t.tiles = t.batch * d.windows * t.tiles_per_plane;
    last = (t.lines - 1) * w.pitch + t.width - 1;
  } else if (t.lines > 0) {
    t.width = w.pitch;
    t.tiles_per_plane = ceil_div(h.windows, t.lines);
    t.tiles = t.batch * d.windows * t.tiles_per_plane;
  } else {
    t.tiles = static_cast<int>((t.rows + t.m - 1) / t.m);
  }
  const int low = h.lo * w.pitch + w.lo, high = h.hi * w.pitch + w.hi;
  // Enough for any tile, so that passes with different tiles share one copy.
  t.guard = round_up(
      t.plane * std::max({0, -d.lo, d.hi}) + std::abs(low) + std::abs(high) + 64 * w.pitch + 1100, 8);
  place_chunks(t, last);
  t.stages = 2;
  return t.shared_bytes() <= wish.shared_limit;
}

// Registers of a thread if a multiprocessor holds that many warpgroups.
int registers_of(int warpgroups) { return std::min(248, 65536 / (128 * warpgroups) / 8 * 8); }

// Whole lines, as many as the second half of a pool needs: what leaves a tile is then pooled along h and w.
// Inputs that no window needs are left out, which often makes lines fit.
bool tile_whole_lines(const ConvTiles& base, const TileWish& wish, double least, ConvTiles& best) {
  const auto& [rest_d, rest_h, rest_w] = wish.rest;
  if (rest_h * rest_w == 1 || base.variants > 1 || wish.reduces) return false;
  const bool exact = wish.input_lo || wish.weights_lo;
  const int room = wish.shared_limit + 1024;
  double best_score = 0;
  for (const int warpgroups : {4, 3, 2, 1}) {
    for (const int pieces : {1, 2}) {
      ConvTiles t = base;
      for (Axis& x : t.axis) crop(x);
      const int m = 64 * warpgroups * pieces;
      t.lines = m / t.axis[2].pitch / rest_h * rest_h;
      while (t.lines > 0 && m % t.lines != 0) t.lines -= rest_h;
      if (t.lines <= 0) continue;
      t.axis[2].pitch = m / t.lines;
      t.join = wish.rest;
      make_rows(t);
      if (t.rows > kMaxRows || !shape_tile(t, wish, warpgroups, pieces)) continue;
      // Sums, parts before promotion, the pool; mma.sync has operands in registers too; 16 for addresses.
      const int sums = pieces * (t.n / 2) * (wish.store_phases + exact + 1) + (wish.wgmma ? 0 : 36);
      auto fits = [&](int resident) {
        return sums + 16 <= registers_of(resident * warpgroups) &&
               resident * (t.shared_bytes() + 1024) <= room;
      };
      if (!fits(1) || t.joined_bytes() > t.tile_shared() + t.weight_shared()) continue;
      t.resident = fits(2) ? 2 : 1;
      while (t.stages < 8 && t.resident * (t.shared_bytes() + t.stage_bytes() + 1024) <= room) ++t.stages;
      // In whole turns of all blocks; what is left after those would keep few of them busy for a unit's time.
      const int turn = wish.multiprocessors * t.resident;
      t.whole = rest_d == 1 ? t.units() : t.units() / turn * turn;
      const int together = t.resident * warpgroups;
      const double overlap = together >= 3 ? 1.0 : together == 2 ? 0.9 : 0.6;
      const double score = t.efficiency() * overlap * (t.m >= 128 ? 1.0 : 0.8);
      if (t.efficiency() < least || score <= best_score) continue;
      best_score = score;
      best = std::move(t);
    }
  }
  return best_score > 0;
}

// Whether all weights and the smallest tiles could share a block's memory.
bool weights_fit(const ConvTiles& t, const TileWish& wish) {
  return static_cast<int64_t>(t.steps.size()) * t.slab_bytes() <= wish.shared_limit * 2 / 3;
}

// Weights that stay: blocks that live as long as the kernel, each with the weights of its share of the phases
// and with two tiles, one computed while the other arrives. Fewest shares first: each reads the input again.
bool hold_weights(const ConvTiles& base, const TileWish& wish, double least, ConvTiles& best) {
  const bool exact = wish.input_lo || wish.weights_lo;
  const int groups = static_cast<int>(base.phases.size()) / base.store_phases;
  if (exact) return false;  // twice the weights leave too little for the tiles
  for (const int owners : {1, 2, 4, 8}) {
    if (owners > (wish.pooled ? 1 : groups)) break;
    // Measured: with all weights in one block and each phase stored, a ring and two blocks are as fast or
    // faster.
    if (owners == 1 && !wish.pooled) {
      if (weights_fit(base, wish)) return false;
      continue;
    }
    double best_score = 0;
    for (const bool boxes : {true, false}) {
      if (!boxes && wish.one_sample) continue;
      for (const int warpgroups : {4, 2, 1}) {
        for (const int pieces : {1, 2}) {
          const int sums = pieces * (base.n / 2) *
                           (base.variants * (base.store_phases + (exact ? 2 : 0)) + (wish.pooled ? 1 : 0));
          if (sums > (warpgroups > 2 ? 80 : 160)) continue;
          ConvTiles t = base;
          t.boxes = boxes;
          t.held = true;
          t.buffers = 2;
          t.scratch = wish.reduces;
          t.takers = wish.pooled ? 1 : (warpgroups + 1) / 2;
          share_phases(t, owners);
          if (!shape_tile(t, wish, warpgroups, pieces)) continue;
          const double overlap = warpgroups == 4 ? 1.0 : warpgroups == 2 ? 0.9 : 0.6;
          const double score = t.efficiency() * overlap * (t.m >= 256 ? 1.0 : 0.97);
          if (t.efficiency() < least || score <= best_score) continue;
          best_score = score;
          best = std::move(t);
        }
      }
    }
    if (best_score == 0) continue;
    share_blocks(best, wish);
    return true;
  }
  return false;
}

}  // namespace

int ConvTiles::tile_half() const {
  if (swept) return blocks * part_bytes;
  int most = 0;
  for (const Owner& o : owners) most = std::max(most, o.chunks);
  return most * chunk_bytes();
}

int ConvTiles::weight_shared() const {
  if (!held) return stages * stage_bytes();
  int most = 0;
  for (const Owner& o : owners) {
    int mine = 0;
    for (const auto& [first, count] : o.slabs) mine += count;
    most = std::max(most, mine);
  }
  return (most * slab_bytes() + 1023) / 1024 * 1024;
}

double ConvTiles::efficiency() const {
  const double useful = static_cast<double>(batch) * axis[0].windows * axis[1].windows * axis[2].windows;
  return useful / (static_cast<double>(tiles) * m);
}

bool tile_conv(const ConvGeometry& g, const TileWish& wish, ConvTiles& t, std::string& why) {
  if (g.groups != 1) return why = "the convolution has groups", false;
  // Tables in a kernel's text have a row a phase and a step a tap.
  constexpr int64_t kMaxTablePhases = 4096, kMaxSteps = 16384, kMaxInt = int64_t{1} << 30;
  int64_t phases = 1, steps = 1;
  for (size_t a = 0; a < g.spatial; ++a) {
    phases *= std::min(g.stride[a], kMaxInt / phases);
    steps *= std::min(g.kernel[a], kMaxInt / steps);
  }
  if (phases > kMaxTablePhases || steps > kMaxSteps)
    return why = "the convolution has more phases or taps than tables in a kernel", false;
  if (std::max({g.batch, g.c_in, g.c_out}) > kMaxInt)
    return why = "samples or channels are more than 32-bit indices reach", false;
  t = {};
  t.batch = static_cast<int>(g.batch);
  t.c_in = static_cast<int>(g.c_in);
  t.c_out = static_cast<int>(g.c_out);
  t.input_lo = wish.input_lo;
  t.weights_lo = wish.weights_lo;
  t.store_phases = wish.store_phases;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (!read_axis(g, a, t.axis[3 - g.spatial + a], why)) return false;
  }
  for (size_t a = 0; a < 3; ++a) {
    if (!make_axis(t.axis[a], wish.pool[a], wish.all_outputs, why)) return false;
  }
  if (t.axis[0].f * t.axis[1].f * t.axis[2].f > 4)
    return why = "the pool's window is more than four phases of each class", false;
  t.ck = row_channels(t.c_in);
  t.blocks = ceil_div(t.c_in, t.ck);
  if (!make_columns(t, wish, why)) return false;
  make_rows(t);
  if (t.rows > kMaxRows) return why = "the input has more rows than 32-bit indices reach", false;
  list_steps(t);
  share_phases(t, 1);

  // Boxes waste nothing when the extents are multiples of 8, lines in a row waste the gaps. The larger tile
  // that fits wins among equals: it reads the weights less often.
  const int taps = t.axis[0].kernel * t.axis[1].kernel * t.axis[2].kernel * t.blocks;
  ConvTiles best;
  double best_score = 0;
  const ConvTiles base = t;
  for (const int form : {0, 1, 2, 3}) {
    // Twice the columns: fewer reads of the rows for as many products. One variant of a pool after the other
    // makes room for them, and asks for the weights again.
    const bool wide = form & 1, serial = form & 2;
    t = base;
    if (wide) {
      if (t.column_blocks == 1 || t.column_blocks % 2 != 0) continue;
      t.n *= 2;
      t.column_blocks /= 2;
    }
    if (serial) {
      Axis& x = t.axis[t.axis[0].f > 1 ? 0 : 1];
      if (!wish.pooled || !wish.wgmma || x.f == 1 || t.variants < 2) continue;
      x.once = 1;
      x.classes = x.window;
      make_rows(t);
    }
    if (wide || serial) {
      list_steps(t);
      share_phases(t, 1);
    }
    for (const bool boxes : {true, false}) {
      if (!boxes && wish.one_sample) continue;
      for (const int warpgroups : {1, 2, 3, 4}) {
        for (const int pieces : {1, 2, 3}) {
          // Registers for sums: phases of the width that are stored together, parts before promotion, the
          // pool.
          const bool exact = wish.input_lo || wish.weights_lo;
          const int sums =
              pieces * (t.n / 2) * (t.variants * (wish.store_phases + exact) + (wish.pooled ? 1 : 0));
          // Four warpgroups of 128 registers a thread, or two of 255; many steps want registers for their
          // addresses.
          const int operands = wish.wgmma ? 0 : 36;
          const bool few =
              !serial && sums + operands <= (taps <= 32 && (!exact || wish.pooled || !wish.wgmma) ? 96 : 80);
          if (!few && (warpgroups > 2 || sums > (serial ? 192 : 160))) continue;
          if (serial && warpgroups < 2) continue;
          ConvTiles candidate = t;
          candidate.boxes = boxes;
          candidate.settles =
              wish.wgmma && exact && (!wish.pooled || (few && (!wish.whole_columns || most_groups(t) > 2)));
          if (!shape_tile(candidate, wish, warpgroups, pieces)) continue;
          // Two blocks a multiprocessor hide each other's waits; four warpgroups in one do so less well.
          const int room = wish.shared_limit + 1024;  // each block costs 1 KB more than it asks for
          const int resident =
              std::max(1, std::min((few ? 4 : 2) / warpgroups, room / (candidate.shared_bytes() + 1024)));
          candidate.resident = resident;
          // The rest of the memory keeps weights ahead, so that warpgroups need not go in step.
          while (candidate.stages < 8 &&
                 resident * (candidate.shared_bytes() + candidate.stage_bytes() + 1024) <= room)
            ++candidate.stages;
          const double reuse = candidate.m >= 256 ? 1.0 : candidate.m >= 128 ? 0.98 : 0.8;
          const double overlap = warpgroups * resident >= 4 ? 1.0 : 0.8;
          const double columns = wide ? 1.1 : 1.0, again = serial ? 0.95 : 1.0;
          const double score = candidate.efficiency() * reuse * overlap * columns * again;
          if (score > best_score) {
            best_score = score;
            best = std::move(candidate);
          }
        }
      }
    }
  }
  t = base;
  ConvTiles lines;
  if (wish.by_line && tile_by_line(g, wish, lines) &&
      (best_score == 0 || lines.row_steps() < best.row_steps())) {
    t = std::move(lines);
    return true;
  }
  if (best_score == 0) return why = "no tile fits the multiprocessor's shared memory and registers", false;
  ConvTiles other;
  if (tile_whole_lines(t, wish, 0.95 * best.efficiency(), other) ||
      (wish.wgmma && (tile_sweep(t, wish, 0.9 * best.efficiency(), other) ||
                      hold_weights(t, wish, 0.9 * best.efficiency(), other))))
    best = std::move(other);
  t = std::move(best);
  return true;
}

RowAt row_at(const ConvTiles& t, int64_t row) {
  const auto& [d, h, w] = t.axis;
  RowAt r{-1, {-1, -1, -1}};
  if (row < 0 || row >= t.rows) return r;
  const int rest = static_cast<int>(row % t.plane), line = rest / w.pitch;
  const int64_t plane = row / t.plane;
  if (line >= h.pitch) return r;
  r.n = static_cast<int>(plane / d.pitch);
  r.a[0] = static_cast<int>(plane % d.pitch);
  r.a[1] = line;
  r.a[2] = rest % w.pitch;
  return r;
}

}  // namespace upweave::cuda
