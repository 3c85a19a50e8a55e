#include "engine/cuda/schedule/line_by_line.h"

#include <algorithm>
#include <numeric>

#include "engine/cuda/axis.h"

namespace upweave::cuda {
namespace {

// Groups of steps: for each phase of the outputs the lines of the kernel that reach it, for each of those all
// taps.
void list_lines(LineByLine& t) {
  const auto& [line, sample, w] = t.conv.axis;
  t.conv.group_begin.assign(1, 0);
  t.conv.phase_begin.assign(1, 0);
  const int shift = modulo(w.lo, 8);  // a copy starts at a multiple of eight rows
  for (int e = 0; e < line.phases; ++e) {
    t.conv.phases.push_back({e, 0, 0});
    for (int kl = 0; kl < line.kernel; ++kl) {
      int delta = 0;
      if (!reaches(line, e, kl, delta)) continue;
      const int at = floor_div(delta, line.f);
      for (int block = 0; block < t.conv.blocks; ++block) {
        t.line_shift.push_back(at);
        for (int b = 0; b < w.f; ++b)
          t.segments.list.push_back(
              {modulo(delta, line.f) * w.f + b, block, at * t.copy.plane + w.lo - shift});
        for (int kw = 0; kw < w.kernel; ++kw) {
          Step step;
          std::vector<int> offset;
          step.block = block;
          step.tap = {kl, 0, kw};
          for (int v = 0; v < w.f; ++v) {
            const int i = w.padding - kw * w.dilation + v;
            step.delta.push_back({delta, 0, i});
            offset.push_back(modulo(i, w.f) * t.segments.rows + shift + floor_div(i, w.f) - w.lo);
          }
          t.conv.steps.push_back(std::move(step));
          t.segments.offset.push_back(std::move(offset));
        }
        t.conv.group_begin.push_back(static_cast<int>(t.conv.steps.size()));
      }
    }
    t.conv.phase_begin.push_back(static_cast<int>(t.conv.group_begin.size()) - 1);
  }
}

// Which block computes which tiles of a launch. Long tiles first, one a block and wave; in the last waves,
// where it counts, the least loaded block takes the next, and then blocks exchange tiles while the longest
// day becomes shorter. `load` is what blocks have to do before.
LineByLine::LineLaunch share_launch(const LineByLine& t, int first, int end, const std::vector<int>& cost,
                                    std::vector<int64_t>& load) {
  const int blocks = t.launched;
  const int shared = end - first == t.tiles ? 12 : 6;  // waves, for tables of constants are small
  auto tile = [&](int s) {
    return t.line_order[s / t.tiles_per_plane] * t.tiles_per_plane + s % t.tiles_per_plane;
  };
  auto cost_of = [&](int at) { return cost[at / t.tiles_per_plane]; };

  LineByLine::LineLaunch launch{first, end, std::max(0, ceil_div(end - first, blocks) - shared), {}};
  launch.last_tiles.resize(blocks);
  int s = first;
  for (; s < first + launch.plain_waves * blocks; ++s) load[(s - first) % blocks] += cost_of(tile(s));
  for (; s < end; ++s) {
    const auto least = std::ranges::min_element(load) - load.begin();
    load[least] += cost_of(tile(s));
    launch.last_tiles[least].push_back(tile(s));
  }
  for (int round = 0; round < 8 * blocks; ++round) {
    const auto most = std::ranges::max_element(load) - load.begin();
    int64_t best = load[most], gain = 0;
    int *give = nullptr, *take = nullptr;
    auto with = most;
    for (int b = 0; b < blocks; ++b) {
      for (int& mine : launch.last_tiles[most]) {
        for (int& theirs : launch.last_tiles[b]) {
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
  return launch;
}

// The first `cut` tiles in one launch, and the others, if there are any, in a second.
void share_tiles(LineByLine& t, int cut) {
  const int lines = t.conv.axis[0].windows, phases = t.conv.axis[0].phases;
  std::vector<int> cost(lines, phases);  // in halves of a line of taps: an epilogue is about one half
  for (int j = 0; j < lines; ++j) {
    for (int c = 0; c < phases; ++c) cost[j] += 2 * t.lines_at(j, c);
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
  t.parts.clear();
  t.parts.push_back(share_launch(t, 0, cut, cost, load));
  if (cut == t.tiles) return;
  std::ranges::sort(load);  // the second one's blocks begin in turn, wherever one of the first is done
  t.parts.push_back(share_launch(t, cut, t.tiles, cost, load));
}

}  // namespace

size_t LineByLine::LineLaunch::last_waves() const {
  size_t most = 0;
  for (const auto& tiles : last_tiles) most = std::max(most, tiles.size());
  return most;
}

int LineByLine::lines_at(int window, int phase) const {
  int found = 0;
  for (int g = conv.phase_begin[phase]; g < conv.phase_begin[phase + 1]; ++g) {
    const int at = window + line_shift[g];
    found += at >= 0 && at < conv.axis[0].stored;
  }
  return found;
}

double LineByLine::row_steps() const {
  double met = 0;
  for (int j = 0; j < conv.axis[0].windows; ++j) {
    for (size_t c = 0; c + 1 < conv.phase_begin.size(); ++c) met += lines_at(j, static_cast<int>(c));
  }
  return met * conv.axis[2].kernel * tiles_per_plane * m * conv.positions;
}

std::optional<LineByLine> tile_line_by_line(const ConvGeometry& g, const EpilogueNeeds& needs) {
  if (g.spatial != 2 || g.groups != 1 || !needs.wgmma || !needs.pooled || needs.one_sample) return {};
  LineByLine t({}, {});
  t.conv.c_in = static_cast<int>(g.c_in);
  t.conv.c_out = static_cast<int>(g.c_out);
  t.conv.input_lo = needs.input_lo;
  t.conv.weights_lo = needs.weights_lo;
  auto& [line, sample, w] = t.conv.axis;
  sample.in = sample.out = static_cast<int>(g.batch);
  std::string why;
  if (!read_axis(g, 0, line, why) || !read_axis(g, 1, w, why)) return {};
  if (!make_axis(line, needs.pool[1], needs.all_outputs, why) || !make_axis(sample, 1, true, why) ||
      !make_axis(w, needs.pool[2], needs.all_outputs, why))
    return {};
  if (w.stride != 1 || w.f > 2) return {};  // every line then has the same taps
  line.once = 1;
  line.phases = line.window;
  line.pitch = line.stored;  // lines beyond the input are left out, so no zeros are kept for them

  t.conv.ck = row_channels(t.conv.c_in);
  t.conv.blocks = ceil_div(t.conv.c_in, t.conv.ck);
  const int all = round_up(t.conv.c_out, 16);
  if (all > 128 && (needs.whole_columns || all % 128 != 0)) return {};
  t.conv.n = std::min(all, 128);
  t.conv.column_blocks = all / t.conv.n;

  t.warpgroups = 2;
  t.m = 128;
  t.conv.positions = w.f;
  t.conv.components = line.f * w.f;
  t.copy.plane = round_up(sample.pitch * w.pitch, 8);
  t.copy.rows = static_cast<int64_t>(line.pitch) * t.copy.plane;
  t.tiles_per_plane = ceil_div(t.copy.plane, t.m);
  t.tiles = line.windows * t.tiles_per_plane;
  t.segments.rows = round_up(modulo(w.lo, 8) + t.m + w.hi - w.lo, 8);
  t.copy.guard = round_up(t.segments.rows + 8, 8);
  if (t.copy.rows > kMaxRows) return {};
  list_lines(t);
  for (int j = 0; j < line.windows; ++j) {
    for (int c = 0; c < line.phases; ++c) {
      if (t.lines_at(j, c) == 0) return {};
    }
  }
  t.launched = std::min(std::max(1, needs.multiprocessors / t.conv.column_blocks), t.tiles);
  share_tiles(t, t.tiles);

  // Beside split sums there are no registers for the pool's running values: they wait where they are stored.
  t.pool_in_memory = needs.exact();
  if (t.pool_in_memory && !needs.pool_leaves) return {};
  t.scratch = needs.reduces;
  if (t.shared_bytes() > needs.shared_limit) return {};
  while (t.stages < 8 && t.shared_bytes() + t.conv.stage_bytes() <= needs.shared_limit) ++t.stages;
  return t;
}

bool LineByLine::divide(int64_t lines, int64_t width) {
  const auto& [line, sample, w] = conv.axis;
  // Whole waves for the first launch: its blocks are done together, and none of the second waits long for the
  // last of them.
  const int cut = std::min(tiles, ceil_div(tiles, 2 * launched) * launched);
  const int first = cut / tiles_per_plane;  // line of the second launch
  const int64_t both = std::min<int64_t>(ceil_div(cut, tiles_per_plane), lines), own = lines / 2;
  const int planes = conv.copy_planes(), samples = ceil_div(sample.windows, planes);
  const int64_t line_bytes = int64_t{samples} * conv.c_out * width * 4;  // in one plane
  // Rows of a plane that the second launch does not read: those before the first line of its taps.
  const int64_t left =
      first + line.lo > 0 ? copy.guard + int64_t{first + line.lo} * copy.plane + floor_div(w.lo, 8) * 8 : 0;
  const int64_t budget =
      std::max((both - own) * line_bytes, (lines - own) * line_bytes - left * conv.row_bytes());
  const int64_t spare =
      (std::max<int64_t>(budget, 0) + 8 * conv.row_bytes() - 1) / (8 * conv.row_bytes()) * 8;
  if (spare * conv.row_bytes() * planes >= int64_t{sample.windows} * conv.c_out * lines * width * 4)
    return false;
  divided = Divided{static_cast<int>(lines), static_cast<int>(width), static_cast<int>(own), samples};
  copy.spare = spare;
  share_tiles(*this, cut);
  return true;
}

}  // namespace upweave::cuda
