#pragma once
// Rows of the copy as tiles have them in shared memory, for the schedules that load a tile in runs of rows.
#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

struct RowSegment {
  int component = 0, block = 0, first_row = 0;  // rows m0 + first_row ...
};
struct RowSegments {
  int rows = 8;  // of each in shared memory
  std::vector<RowSegment> list;
  std::vector<std::vector<int>> offset;  // per step and position: shared-memory row of the tile's row 0

  int bytes(const Convolution& conv) const { return shared_bytes_of(rows, conv.row_bytes()); }
  std::vector<int64_t> offsets(const Schedule& t) const;  // bytes into the copy, for a tile at its first row
};

// A tile's windows: boxes of 8 lines of 8 for every 64 rows, or rows in a row.
struct TileShape {
  bool boxes = false;
  int lines = 0, width = 0, across = 1;  // boxes: the tile's extent in h and w; tiles along the width
};

// So many rows for the tile, in the best shape; false if it has none. `last` is the tile's highest row,
// counted from its lowest.
bool shape_tile(Schedule& t, TileShape& shape, int warpgroups, int subtiles, int& last);
// Zero rows for any tile, so that passes with different tiles share one copy.
int guard_rows(const Convolution& conv, const InputCopy& copy);

// Which runs of rows the taps of each part of the steps read: one per channel block, component and depth
// shift. `part` is a step's, `begin` gets where each part's segments begin, and where the last one's end.
RowSegments place_segments(const Schedule& t, int last, const std::vector<int>& part, int parts,
                           std::vector<int>& begin);
RowSegments place_segments(const Schedule& t, int last);  // of one part

// Bytes of shared memory that a row's place is, for each position of steps [from, to).
std::vector<int64_t> byte_offsets(const Convolution& conv, const RowSegments& segments, int from, int to);

}  // namespace upweave::cuda
