#include "engine/cuda/conv_tiles.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace upweave::cuda {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 30;

int floor_div(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
int ceil_div(int a, int b) { return (a + b - 1) / b; }
int round_up(int a, int b) { return ceil_div(a, b) * b; }
int modulo(int a, int b) { return a - floor_div(a, b) * b; }

// (e + padding - k dilation) / stride, if it is whole.
bool reaches(const Axis& x, int e, int k, int& delta) {
  const int at = e + x.padding - k * x.dilation;
  if (modulo(at, x.stride) != 0) return false;
  delta = floor_div(at, x.stride);
  return true;
}

bool make_axis(Axis& x, int pool, bool all_outputs, std::string& why) {
  const bool pooled = pool > 1;
  x.window = pooled ? pool : x.stride;
  if (x.window % x.stride != 0) {
    why = fmt::format("the pool's window {} is no multiple of the stride {}", x.window, x.stride);
    return false;
  }
  x.f = x.window / x.stride;
  x.windows = pooled && !all_outputs ? x.out / pool : ceil_div(x.out, x.window);
  x.stored = ceil_div(x.in, x.f);
  bool any = false;
  for (int e = 0; e < x.stride; ++e) {
    for (int k = 0; k < x.kernel; ++k) {
      int delta = 0;
      if (!reaches(x, e, k, delta)) continue;
      for (int u = 0; u < x.f; ++u) {
        const int a = floor_div(delta + u, x.f);
        x.lo = any ? std::min(x.lo, a) : a;
        x.hi = any ? std::max(x.hi, a) : a;
        any = true;
      }
    }
  }
  // A gap of zeros that serves as this line's right border and the next line's left one.
  const int gap = std::max({0, -x.lo, x.windows - 1 + x.hi - (x.stored - 1)});
  x.pitch = std::max(x.stored + gap, x.windows);
  return true;
}

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
  t.variants = t.residues;
}

// The tile's shape for `pieces` pieces a warpgroup; false if it does not fit.
bool shape_tile(ConvTiles& t, const TileWish& wish, int warpgroups, int pieces) {
  const auto& [d, h, w] = t.axis;
  t.warpgroups = warpgroups;
  t.pieces = pieces;
  t.m = 64 * warpgroups * pieces;
  int last = t.m - 1;  // the highest row of the tile, counted from its lowest
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
  } else {
    t.tiles = static_cast<int>((t.rows + t.m - 1) / t.m);
  }
  const int low = h.lo * w.pitch + w.lo, high = h.hi * w.pitch + w.hi;
  t.shift = modulo(low, 8);
  t.chunk_rows = round_up(t.shift + last + 1 + high - low, 8);
  // Enough for any tile, so that passes with different tiles share one copy.
  t.guard = round_up(
      t.plane * std::max({0, -d.lo, d.hi}) + std::abs(low) + std::abs(high) + 64 * w.pitch + 1100, 8);
  // Which runs of rows the taps read: one per residue, depth shift and channel block.
  t.chunks.clear();
  for (int block = 0; block < t.blocks; ++block) {
    for (int residue = 0; residue < t.residues; ++residue) {
      for (int ad = d.lo; ad <= d.hi; ++ad)
        t.chunks.push_back({residue, block, ad * t.plane + low - t.shift});
    }
  }
  const int per_block = t.residues * (d.hi - d.lo + 1);
  // Steps: class by class, tap by tap, block by block.
  t.steps.clear();
  t.phases.clear();
  t.class_begin.assign(1, 0);
  t.group_begin.assign(1, 0);
  for (int ed = 0; ed < d.stride; ++ed) {
    for (int eh = 0; eh < h.stride; ++eh) {
      for (int ew = 0; ew < w.stride; ++ew) {
        t.phases.push_back({ed, eh, ew});
        const size_t first = t.steps.size();
        for (int kd = 0; kd < d.kernel; ++kd) {
          for (int kh = 0; kh < h.kernel; ++kh) {
            for (int kw = 0; kw < w.kernel; ++kw) {
              int dd = 0, dh = 0, dw = 0;
              if (!reaches(d, ed, kd, dd) || !reaches(h, eh, kh, dh) || !reaches(w, ew, kw, dw)) continue;
              for (int block = 0; block < t.blocks; ++block) {
                Step step;
                step.chunk_base = block * per_block;
                step.tap = {kd, kh, kw};
                for (int v = 0; v < t.variants; ++v) {
                  const int ud = v / (h.f * w.f), uh = v / w.f % h.f, uw = v % w.f;
                  const int id = dd + ud, ih = dh + uh, iw = dw + uw;
                  const int residue = (modulo(id, d.f) * h.f + modulo(ih, h.f)) * w.f + modulo(iw, w.f);
                  const int ad = floor_div(id, d.f), ah = floor_div(ih, h.f), aw = floor_div(iw, w.f);
                  const int chunk = step.chunk_base + residue * (d.hi - d.lo + 1) + ad - d.lo;
                  step.row_offset.push_back(chunk * t.chunk_rows + t.shift + ah * w.pitch + aw - low);
                  step.delta.push_back({id, ih, iw});
                }
                t.steps.push_back(std::move(step));
              }
            }
          }
        }
        // Sums are promoted after at most 128 terms, so a group has no more.
        const int count = static_cast<int>(t.steps.size() - first), per_group = std::max(1, 128 / t.ck);
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
  t.stages = 2;
  return t.shared_bytes() <= wish.shared_limit;
}

}  // namespace

double ConvTiles::efficiency() const {
  const double useful = static_cast<double>(batch) * axis[0].windows * axis[1].windows * axis[2].windows;
  return useful / (static_cast<double>(tiles) * m);
}

bool tile_conv(const ConvGeometry& g, const TileWish& wish, ConvTiles& t, std::string& why) {
  if (g.groups != 1) return why = "the convolution has groups", false;
  t = {};
  t.batch = static_cast<int>(g.batch);
  t.c_in = static_cast<int>(g.c_in);
  t.c_out = static_cast<int>(g.c_out);
  t.input_lo = wish.input_lo;
  t.weights_lo = wish.weights_lo;
  for (size_t a = 0; a < g.spatial; ++a) {
    if (g.in[a] > 1 << 20 || g.out[a] > 1 << 20) return why = "an extent is beyond a million", false;
    Axis& x = t.axis[3 - g.spatial + a];
    x.in = static_cast<int>(g.in[a]);
    x.kernel = static_cast<int>(g.kernel[a]);
    x.stride = static_cast<int>(g.stride[a]);
    x.padding = static_cast<int>(g.padding[a]);
    x.dilation = static_cast<int>(g.dilation[a]);
    x.out = static_cast<int>(g.out[a]);
  }
  for (size_t a = 0; a < 3; ++a) {
    if (!make_axis(t.axis[a], wish.pool[a], wish.all_outputs, why)) return false;
  }
  if (t.axis[0].f * t.axis[1].f * t.axis[2].f > 4)
    return why = "the pool's window is more than four phases of each class", false;
  if (t.c_in > 64) {
    t.ck = 64;
  } else {
    t.ck = t.c_in <= 16 ? 16 : t.c_in <= 32 ? 32 : 64;
  }
  t.blocks = ceil_div(t.c_in, t.ck);
  if (!make_columns(t, wish, why)) return false;
  make_rows(t);
  if (t.rows > kMaxRows) return why = "the input has more rows than 32-bit indices reach", false;

  // Boxes waste nothing when the extents are multiples of 8, lines in a row waste the gaps. The larger tile
  // that fits wins among equals: it reads the weights less often.
  const int taps = t.axis[0].kernel * t.axis[1].kernel * t.axis[2].kernel * t.blocks;
  ConvTiles best;
  double best_score = 0;
  for (const bool boxes : {true, false}) {
    if (!boxes && wish.one_sample) continue;
    for (const int warpgroups : {1, 2, 3, 4}) {
      for (const int pieces : {1, 2, 3}) {
        // Registers for sums: phases of the width that are stored together, parts before promotion, the pool.
        const bool exact = wish.input_lo || wish.weights_lo;
        const int sums =
            pieces * (t.n / 2) * (t.variants * (wish.store_phases + exact) + (wish.pooled ? 1 : 0));
        // Four warpgroups of 128 registers a thread, or two of 255; many steps want registers for their
        // addresses.
        const int operands = wish.wgmma ? 0 : 36;
        const bool few = sums + operands <= (taps <= 32 ? 96 : 80);
        if (!few && (warpgroups > 2 || sums > 160)) continue;
        ConvTiles candidate = t;
        candidate.boxes = boxes;
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
        const double score = candidate.efficiency() * reuse * overlap;
        if (score > best_score) {
          best_score = score;
          best = std::move(candidate);
        }
      }
    }
  }
  if (best_score == 0) return why = "no tile fits the multiprocessor's shared memory and registers", false;
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
