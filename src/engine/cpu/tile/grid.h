#pragma once
// How a tile program is cut into tiles.
#include "engine/cpu/tile/tile.h"

namespace upweave::cpu {

constexpr int64_t kChunkFloats = 4096;  // of one buffer that a run of row-local steps goes through at once

// One tile: a box of level 0 of sample n (channels last), or channels and positions of it (channels first).
struct Tile {
  int64_t n = 0, index = 0;  // index: over all samples
  Box box;
  int64_t c0 = 0, channels = 1, first = 0, positions = 1;
  bool leads =
      false;  // the first tile of its sample (and channels): it stores what does not vary along space
};

class TileGrid {
 public:
  TileGrid(const TileProgram& program, int64_t cache_bytes);

  Tile tile(int64_t index) const;                 // over all samples
  Box box_at(const Tile& tile, int level) const;  // the tile's positions of a level
  int64_t buffer_floats(size_t buffer) const { return buffer_floats(buffer, extent, channels, columns); }

  Extents extent = {1, 1, 1};         // channels last: of a tile, at level 0
  int64_t channels = 1, columns = 1;  // channels first; channels last: elements of a row
  Extents count = {1, 1, 1};          // tiles along each axis (channels first: channels, then columns)
  int64_t per_sample = 1;

 private:
  bool last() const { return p_.layout == Layout::kChannelsLast; }
  int64_t buffer_floats(size_t buffer, const Extents& tile, int64_t channel_count,
                        int64_t column_count) const;
  int64_t total_floats(const Extents& tile, int64_t channel_count, int64_t column_count) const;
  void cut_positions(int64_t budget);
  void cut_channels(int64_t budget);

  const TileProgram& p_;
};

}  // namespace upweave::cpu
