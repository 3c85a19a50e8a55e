#include "engine/cpu/tile/grid.h"

#include <algorithm>
#include <numeric>

namespace upweave::cpu {
namespace {

// A deep layer: few positions, but many multiply-adds of 16 floats.
constexpr int64_t kFewPositions = 1024;
constexpr double kMuchWork = 1e6;

}  // namespace

// Tiles whose buffers fill three fifths of the cache; the rest is for weights, input and lines in flight.
TileGrid::TileGrid(const TileProgram& program, int64_t cache_bytes) : p_(program) {
  const int64_t budget = cache_bytes * 3 / 5 / 4;
  last() ? cut_positions(budget) : cut_channels(budget);
}

int64_t TileGrid::buffer_floats(size_t buffer, const Extents& tile, int64_t channel_count,
                                int64_t column_count) const {
  const Kind kind = p_.buffer_kind[buffer];
  if (kind == Kind::kScalar) return kLane;
  if (kind == Kind::kVector) return padded(channel_count);
  if (kind == Kind::kStats) return 4 * padded(p_.dims.c);
  if (!last()) return (kind == Kind::kFull ? channel_count : 1) * padded(column_count);
  const Level& level = p_.levels[static_cast<size_t>(p_.buffer_level[buffer])];
  int64_t positions = 1;
  for (size_t a = 0; a < 3; ++a) {
    positions *= std::min(level.extent[a], (tile[a] + level.stride[a] - 1) / level.stride[a]);
  }
  return kind == Kind::kFull ? positions * channel_count : padded(positions) + kLane;
}

int64_t TileGrid::total_floats(const Extents& tile, int64_t channel_count, int64_t column_count) const {
  int64_t n = 0;
  for (size_t b = 0; b < p_.buffer_kind.size(); ++b) n += buffer_floats(b, tile, channel_count, column_count);
  return n;
}

// Width grows first, then height, then depth: rows of the output are then whole. Whole rows are worth twice
// the budget: they are stored past the caches as long runs.
void TileGrid::cut_positions(int64_t budget) {
  // As if all blocks of channels were here: statistics are then of the same boxes however many there are.
  const int64_t all = p_.ld_channels * (p_.conv ? p_.conv->blocks : 1);
  channels = p_.ld_channels;
  const Extents full = p_.levels[0].extent;
  Extents unit = p_.multiple;
  if (p_.conv) {
    const Extents quantum = p_.conv->kernel->tile_quantum();
    for (size_t a = 0; a < 3; ++a) unit[a] = common_multiple(unit[a], std::max<int64_t>(1, quantum[a]));
    if (total_floats(unit, all, 1) > 2 * budget) unit = p_.multiple;
  }
  for (size_t a = 0; a < 3; ++a) extent[a] = p_.whole[a] ? full[a] : std::min(unit[a], full[a]);
  if (p_.tile[0] > 0) {
    extent = p_.tile;
  } else if (total_floats({extent[0], extent[1], full[2]}, all, 1) <= 2 * budget) {
    extent[2] = full[2];
  }
  for (const size_t a : {2, 1, 0}) {
    while (p_.tile[0] == 0 && extent[a] < full[a]) {
      Extents next = extent;
      next[a] = std::min(full[a], extent[a] + unit[a]);
      if (total_floats(next, all, 1) > budget) break;
      extent = next;
    }
  }
  // A deep layer is work for two threads: half of its longest axis. Whatever the batch, so that a sample's
  // statistics are of the same boxes in any; more tiles would read the weights more often.
  if (p_.conv && extent == full && p_.tile[0] == 0 && p_.dims.voxels() <= kFewPositions &&
      p_.conv->cost >= kMuchWork) {
    size_t longest = 0;
    for (const size_t a : {1, 2}) {
      if (!p_.whole[a] && (p_.whole[longest] || full[a] > full[longest])) longest = a;
    }
    if (!p_.whole[longest])
      extent[longest] = std::min(full[longest], round_up((full[longest] + 1) / 2, unit[longest]));
  }
  // As many tiles, of more even extents.
  for (size_t a = 0; a < 3; ++a) {
    count[a] = (full[a] + extent[a] - 1) / extent[a];
    if (p_.tile[0] == 0 && extent[a] < full[a])
      extent[a] = std::min(extent[a], round_up((full[a] + count[a] - 1) / count[a], unit[a]));
    count[a] = (full[a] + extent[a] - 1) / extent[a];
  }
  per_sample = count[0] * count[1] * count[2];
}

void TileGrid::cut_channels(int64_t budget) {
  const int64_t voxels = p_.dims.voxels(), step = p_.channel_multiple;
  channels = step;
  columns = p_.local_space ? voxels : std::min(voxels, kChunkFloats);  // nothing to wait for: the first cache
  while (channels + step <= p_.dims.c && columns == voxels &&
         total_floats({}, channels + step, columns) <= budget / 4) {
    channels += step;
  }
  count = {(p_.dims.c + channels - 1) / channels, (voxels + columns - 1) / columns, 1};
  per_sample = count[0] * count[1];
}

Box TileGrid::box_at(const Tile& tile, int level) const {
  const Level& l = p_.levels[static_cast<size_t>(level)];
  Box box;
  for (size_t a = 0; a < 3; ++a) {
    const int64_t end = tile.box.lo[a] + tile.box.extent[a];
    const int64_t hi = end == p_.levels[0].extent[a] ? l.extent[a] : std::min(l.extent[a], end / l.stride[a]);
    box.lo[a] = tile.box.lo[a] / l.stride[a];
    box.extent[a] = std::max<int64_t>(0, hi - box.lo[a]);  // a pool may drop all of the last tile
  }
  return box;
}

Tile TileGrid::tile(int64_t index) const {
  Tile t;
  t.index = index;
  t.n = index / per_sample;
  int64_t i = index % per_sample;
  if (last()) {
    t.leads = i == 0;
    t.channels = p_.dims.c;
    for (size_t a = 3; a-- > 0; i /= count[a]) {
      t.box.lo[a] = i % count[a] * extent[a];
      t.box.extent[a] = std::min(extent[a], p_.levels[0].extent[a] - t.box.lo[a]);
    }
    return t;
  }
  t.c0 = i / count[1] * channels;
  t.channels = std::min(channels, p_.dims.c - t.c0);
  t.first = i % count[1] * columns;
  t.positions = std::min(columns, p_.dims.voxels() - t.first);
  t.leads = t.first == 0;
  return t;
}

}  // namespace upweave::cpu
