#pragma once
#include "engine/cpu/predict.h"
#include "engine/cpu/tile/grid.h"

namespace upweave::cpu {

// What a sweep over the tiles of `grid` must do. `cache_bytes` is a core's own.
Work tile_work(const TileProgram& program, const TileGrid& grid, int64_t cache_bytes);

}  // namespace upweave::cpu
