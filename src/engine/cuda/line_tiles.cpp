#include <algorithm>
#include <numeric>

#include "engine/cuda/tile_axis.h"

// Tiles by line, for a convolution in the plane with a pool behind it. Rows run over (line of windows,
// sample, window) instead of (sample, line, window): all rows of a tile have the same line, so that
//   - a tap that reaches beyond the first or the last line of the input is left out, not multiplied with
//     zeros, and there are no gaps between samples;
//   - the rows that the taps of one kernel line read are one piece of the copy, which can be streamed as the
//     weights are. So a tile needs little shared memory, the hi and lo of `strict` included, and its first
//     rows arrive while the tile before is computed.
// In the axes of ConvTiles: depth is the line, height the sample (one tap, no pool), and there is one batch.
namespace upweave::cuda {
namespace {

// Groups of steps: for each class of outputs the lines of the kernel that reach it, for each of those all
// taps.
void list_lines(ConvTiles& t) {
  const auto& [line, sample, w] = t.axis;
  t.group_begin.assign(1, 0);
  t.class_begin.assign(1, 0);
  const int shift = modulo(w.lo, 8);  // a copy starts at a multiple of eight rows
  for (int e = 0; e < line.classes; ++e) {
    t.phases.push_back({e, 0, 0});
    for (int kl = 0; kl < line.kernel; ++kl) {
      int delta = 0;
      if (!reaches(line, e, kl, delta)) continue;
      const int at = floor_div(delta, line.f);
      for (int block = 0; block < t.blocks; ++block) {
        t.line_shift.push_back(at);
        for (int b = 0; b < w.f; ++b)
          t.chunks.push_back({modulo(delta, line.f) * w.f + b, block, at * t.plane + w.lo - shift});
        for (int kw = 0; kw < w.kernel; ++kw) {
          Step step;
          step.block = block;
          step.tap = {kl, 0, kw};
          for (int v = 0; v < w.f; ++v) {
            const int i = w.padding - kw * w.dilation + v;
            step.delta.push_back({delta, 0, i});
            step.row_offset.push_back(modulo(i, w.f) * t.chunk_rows + shift + floor_div(i, w.f) - w.lo);
          }
          t.steps.push_back(std::move(step));
        }
        t.group_begin.push_back(static_cast<int>(t.steps.size()));
      }
    }
    t.class_begin.push_back(static_cast<int>(t.group_begin.size()) - 1);
  }
}

// Which block computes which tiles of a launch. Long tiles first, one a block and turn; in the last turns,
// where it counts, the least loaded block takes the next, and then blocks exchange tiles while the longest
// day becomes shorter. `load` is what blocks have to do before.
LineLeg share_leg(const ConvTiles& t, int first, int end, const std::vector<int>& cost,
                  std::vector<int64_t>& load) {
  const int blocks = t.launched;
  const int shared = end - first == t.tiles ? 12 : 6;  // turns, for tables of constants are small
  auto tile = [&](int s) {
    return t.line_order[s / t.tiles_per_plane] * t.tiles_per_plane + s % t.tiles_per_plane;
  };
  auto cost_of = [&](int at) { return cost[at / t.tiles_per_plane]; };

  LineLeg leg{first, end, std::max(0, ceil_div(end - first, blocks) - shared), {}};
  leg.last_tiles.resize(blocks);
  int s = first;
  for (; s < first + leg.plain_turns * blocks; ++s) load[(s - first) % blocks] += cost_of(tile(s));
  for (; s < end; ++s) {
    const auto least = std::ranges::min_element(load) - load.begin();
    load[least] += cost_of(tile(s));
    leg.last_tiles[least].push_back(tile(s));
  }
  for (int round = 0; round < 8 * blocks; ++round) {
    const auto most = std::ranges::max_element(load) - load.begin();
    int64_t best = load[most], gain = 0;
    int *give = nullptr, *take = nullptr;
    auto with = most;
    for (int b = 0; b < blocks; ++b) {
      for (int& mine : leg.last_tiles[most]) {
        for (int& theirs : leg.last_tiles[b]) {
          const int64_t less = cost_of(mine) - cost_of(theirs),
                        longer = std::max(load[most] - less, load[b] + less);
          if (longer >= best) continue;
          best = longer, gain = less, with = b, give = &mine, take = &theirs;
        }
      }
    }
    if (!give) break;
    std::swap(*give, *take);
    load[most] -= gain;
    load[with] += gain;
  }
  return leg;
}

// The first `cut` tiles in one launch, and the others, if there are any, in a second.
void share_tiles(ConvTiles& t, int cut) {
  const int lines = t.axis[0].windows, classes = t.axis[0].classes;
  std::vector<int> cost(lines, classes);  // in halves of a line of taps: an epilogue is about one half
  for (int j = 0; j < lines; ++j) {
    for (int c = 0; c < classes; ++c) cost[j] += 2 * t.lines_at(j, c);
  }
  t.line_order.resize(lines);
  std::iota(t.line_order.begin(), t.line_order.end(), 0);
  auto sort = [&](int first, int end) {  // a line that is in both stays between them
    std::stable_sort(t.line_order.begin() + first, t.line_order.begin() + end,
                     [&](int a, int b) { return cost[a] > cost[b]; });
  };
  sort(0, cut / t.tiles_per_plane);
  sort(ceil_div(cut, t.tiles_per_plane), lines);
  std::vector<int64_t> load(t.launched, 0);
  t.legs.clear();
  t.legs.push_back(share_leg(t, 0, cut, cost, load));
  if (cut == t.tiles) return;
  std::ranges::sort(load);  // the second one's blocks begin in turn, wherever one of the first is done
  t.legs.push_back(share_leg(t, cut, t.tiles, cost, load));
}

}  // namespace

int ConvTiles::lines_at(int window, int cls) const {
  int found = 0;
  for (int g = class_begin[cls]; g < class_begin[cls + 1]; ++g) {
    const int at = window + line_shift[g];
    found += at >= 0 && at < axis[0].stored;
  }
  return found;
}

double ConvTiles::row_steps() const {
  if (!by_line) return static_cast<double>(tiles) * m * variants * static_cast<double>(steps.size());
  double met = 0;
  for (int j = 0; j < axis[0].windows; ++j) {
    for (size_t c = 0; c + 1 < class_begin.size(); ++c) met += lines_at(j, static_cast<int>(c));
  }
  return met * axis[2].kernel * tiles_per_plane * m * variants;
}

bool tile_by_line(const ConvGeometry& g, const TileWish& wish, ConvTiles& t) {
  const bool exact = wish.input_lo || wish.weights_lo;
  if (g.spatial != 2 || g.groups != 1 || !wish.wgmma || !wish.pooled || wish.one_sample) return false;
  t = {};
  t.by_line = true;
  t.c_in = static_cast<int>(g.c_in);
  t.c_out = static_cast<int>(g.c_out);
  t.input_lo = wish.input_lo;
  t.weights_lo = wish.weights_lo;
  auto& [line, sample, w] = t.axis;
  sample.in = sample.out = static_cast<int>(g.batch);
  std::string why;
  if (!read_axis(g, 0, line, why) || !read_axis(g, 1, w, why)) return false;
  if (!make_axis(line, wish.pool[1], wish.all_outputs, why) || !make_axis(sample, 1, true, why) ||
      !make_axis(w, wish.pool[2], wish.all_outputs, why))
    return false;
  if (w.stride != 1 || w.f > 2) return false;  // every line then has the same taps
  line.once = 1;
  line.classes = line.window;
  line.pitch = line.stored;  // lines beyond the input are left out, so no zeros are kept for them

  t.ck = row_channels(t.c_in);
  t.blocks = ceil_div(t.c_in, t.ck);
  const int all = round_up(t.c_out, 16);
  if (all > 128 && (wish.whole_columns || all % 128 != 0)) return false;
  t.n = std::min(all, 128);
  t.column_blocks = all / t.n;

  t.warpgroups = 2;
  t.m = 128;
  t.variants = w.f;
  t.residues = line.f * w.f;
  t.plane = round_up(sample.pitch * w.pitch, 8);
  t.rows = static_cast<int64_t>(line.pitch) * t.plane;
  t.tiles_per_plane = ceil_div(t.plane, t.m);
  t.tiles = line.windows * t.tiles_per_plane;
  t.chunk_rows = round_up(modulo(w.lo, 8) + t.m + w.hi - w.lo, 8);
  t.guard = round_up(t.chunk_rows + 8, 8);
  if (t.rows > kMaxRows) return false;
  list_lines(t);
  for (int j = 0; j < line.windows; ++j) {
    for (int c = 0; c < line.classes; ++c) {
      if (t.lines_at(j, c) == 0) return false;
    }
  }
  t.owners.assign(1, {});
  t.owners[0].chunks = w.f;
  t.launched = std::min(std::max(1, wish.multiprocessors / t.column_blocks), t.tiles);
  share_tiles(t, t.tiles);

  // Beside split sums there are no registers for the pool's running values: they wait where they are stored.
  t.pool_in_memory = exact;
  if (t.pool_in_memory && !wish.pool_leaves) return false;
  t.scratch = wish.reduces;
  t.buffers = t.stages = 2;
  if (t.shared_bytes() > wish.shared_limit) return false;
  while (t.stages < 8 && t.shared_bytes() + t.stage_bytes() <= wish.shared_limit) ++t.stages;
  return true;
}

bool divide_lines(ConvTiles& t, int64_t lines, int64_t width) {
  const auto& [line, sample, w] = t.axis;
  // Whole turns for the first launch: its blocks are done together, and none of the second waits long for the
  // last of them.
  const int cut = std::min(t.tiles, ceil_div(t.tiles, 2 * t.launched) * t.launched);
  const int first = cut / t.tiles_per_plane;  // line of the second launch
  const int64_t both = std::min<int64_t>(ceil_div(cut, t.tiles_per_plane), lines), own = lines / 2;
  const int planes = t.copy_planes(), samples = ceil_div(sample.windows, planes);
  const int64_t line_bytes = int64_t{samples} * t.c_out * width * 4;  // in one plane
  // Rows of a plane that the second launch does not read: those before the first line of its taps.
  const int64_t left =
      first + line.lo > 0 ? t.guard + int64_t{first + line.lo} * t.plane + floor_div(w.lo, 8) * 8 : 0;
  const int64_t room = std::max((both - own) * line_bytes, (lines - own) * line_bytes - left * t.row_bytes());
  const int64_t spare = (std::max<int64_t>(room, 0) + 8 * t.row_bytes() - 1) / (8 * t.row_bytes()) * 8;
  if (spare * t.row_bytes() * planes >= int64_t{sample.windows} * t.c_out * lines * width * 4) return false;
  t.pooled_lines = static_cast<int>(lines);
  t.pooled_width = static_cast<int>(width);
  t.own_lines = static_cast<int>(own);
  t.rest_samples = samples;
  t.spare = spare;
  share_tiles(t, cut);
  return true;
}

}  // namespace upweave::cuda
