#include "engine/cuda/schedule/row_segments.h"

#include <algorithm>

#include "engine/cuda/axis.h"

namespace upweave::cuda {

std::vector<int64_t> RowSegments::offsets(const Schedule& t) const {
  std::vector<int64_t> result;
  for (const RowSegment& s : list) {
    result.push_back((int64_t{s.component} * t.conv.blocks + s.block) * t.plane_bytes() +
                     (int64_t{t.copy.guard} + s.first_row) * t.conv.row_bytes());
  }
  return result;
}

bool shape_tile(Schedule& t, TileShape& shape, int warpgroups, int subtiles, int& last) {
  const auto& [d, h, w] = t.conv.axis;
  t.warpgroups = warpgroups;
  t.subtiles = subtiles;
  t.m = 64 * warpgroups * subtiles;
  if (!shape.boxes) {
    last = t.m - 1;
    t.tiles = static_cast<int>((t.copy.rows + t.m - 1) / t.m);
    return true;
  }
  // As wide as it can be: lines cost the gaps between them.
  const int across = round_up(w.windows, 8);
  for (shape.width = std::min(t.m / 8, across); shape.width >= 8; shape.width -= 8) {
    if (t.m % (shape.width * 8) == 0 && across % shape.width == 0) break;
  }
  if (shape.width < 8) return false;
  shape.lines = t.m / shape.width;
  if (shape.lines > round_up(h.windows, 8)) return false;
  shape.across = ceil_div(w.windows, shape.width);
  t.tiles_per_plane = ceil_div(h.windows, shape.lines) * shape.across;
  t.tiles = t.conv.batch * d.windows * t.tiles_per_plane;
  last = (shape.lines - 1) * w.pitch + shape.width - 1;
  return true;
}

int guard_rows(const Convolution& conv, const InputCopy& copy) {
  const auto& [d, h, w] = conv.axis;
  const int low = h.lo * w.pitch + w.lo, high = h.hi * w.pitch + w.hi;
  return round_up(
      copy.plane * std::max({0, -d.lo, d.hi}) + std::abs(low) + std::abs(high) + 64 * w.pitch + 1100, 8);
}

RowSegments place_segments(const Schedule& t, int last, const std::vector<int>& part, int parts,
                           std::vector<int>& begin) {
  const Convolution& conv = t.conv;
  const auto& [d, h, w] = conv.axis;
  RowSegments result;
  struct Reach {
    int d_lo = 0, d_hi = 0, low = 0, shift = 0;
  };
  std::vector<Reach> reach;
  begin.assign(1, 0);
  for (int p = 0; p < parts; ++p) {
    int lo[3] = {}, hi[3] = {};
    bool any = false;
    for (size_t s = 0; s < conv.steps.size(); ++s) {
      if (part[s] != p) continue;
      for (const auto& delta : conv.steps[s].delta) {
        for (int a = 0; a < 3; ++a) {
          const int at = floor_div(delta[a], conv.axis[a].f);
          lo[a] = any ? std::min(lo[a], at) : at;
          hi[a] = any ? std::max(hi[a], at) : at;
        }
        any = true;
      }
    }
    const int low = lo[1] * w.pitch + lo[2], high = hi[1] * w.pitch + hi[2], shift = modulo(low, 8);
    result.rows = std::max(result.rows, round_up(shift + last + 1 + high - low, 8));
    for (int block = 0; block < conv.blocks; ++block) {
      for (int component = 0; component < conv.components; ++component) {
        for (int ad = lo[0]; ad <= hi[0]; ++ad)
          result.list.push_back({component, block, ad * t.copy.plane + low - shift});
      }
    }
    begin.push_back(static_cast<int>(result.list.size()));
    reach.push_back({lo[0], hi[0], low, shift});
  }
  // Of a tile that no shared memory holds nobody asks for its places.
  if (static_cast<int64_t>(result.list.size()) * result.rows * conv.row_bytes() > kMostSharedBytes)
    return result;
  for (size_t s = 0; s < conv.steps.size(); ++s) {
    const Step& step = conv.steps[s];
    const Reach& r = reach[part[s]];
    std::vector<int>& offset = result.offset.emplace_back();
    for (const auto& [id, ih, iw] : step.delta) {
      const int component = (modulo(id, d.f) * h.f + modulo(ih, h.f)) * w.f + modulo(iw, w.f);
      const int segment =
          (step.block * conv.components + component) * (r.d_hi - r.d_lo + 1) + floor_div(id, d.f) - r.d_lo;
      offset.push_back(segment * result.rows + r.shift + floor_div(ih, h.f) * w.pitch + floor_div(iw, w.f) -
                       r.low);
    }
  }
  return result;
}

RowSegments place_segments(const Schedule& t, int last) {
  std::vector<int> begin;
  return place_segments(t, last, std::vector<int>(t.conv.steps.size(), 0), 1, begin);
}

std::vector<int64_t> byte_offsets(const Convolution& conv, const RowSegments& segments, int from, int to) {
  std::vector<int64_t> offsets;
  for (int s = from; s < to; ++s) {
    for (const int row : segments.offset[s]) offsets.push_back(int64_t{row} * conv.row_bytes());
  }
  return offsets;
}

}  // namespace upweave::cuda
