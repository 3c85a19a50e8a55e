#include "engine/cpu/tile/move.h"

#include <algorithm>
#include <cstring>

namespace upweave::cpu {
namespace {

// Offset of position (d, h, 0) of one channel, 0 along axes that are broadcast.
int64_t row_offset(const Dims& dims, int64_t n, int64_t c, int64_t d, int64_t h) {
  const int64_t row = (dims.n == 1 ? 0 : n) * dims.c + (dims.c == 1 ? 0 : c);
  return ((row * dims.space[0] + (dims.space[0] == 1 ? 0 : d)) * dims.space[1] +
          (dims.space[1] == 1 ? 0 : h)) *
         dims.space[2];
}

uint16_t* halves(char* data, int64_t at) { return reinterpret_cast<uint16_t*>(data) + at; }
const uint16_t* halves(const char* data, int64_t at) { return reinterpret_cast<const uint16_t*>(data) + at; }

void load_elements(const Memory& from, const Bases& bases, int64_t at, int64_t n, float* dst) {
  const char* data = from.read(bases);
  if (from.split()) return join(halves(data, at), halves(from.lower(bases), at), n, dst);
  expand(data + at * size_of(from.type), from.type, n, dst);
}

// The row of position (d, h, w) of sample n in a value channels last, 0 along axes that are broadcast.
int64_t position_row(const Dims& dims, int64_t n, int64_t d, int64_t h, int64_t w) {
  const Extents &e = dims.space, at = {e[0] == 1 ? 0 : d, e[1] == 1 ? 0 : h, e[2] == 1 ? 0 : w};
  return (((dims.n == 1 ? 0 : n) * e[0] + at[0]) * e[1] + at[1]) * e[2] + at[2];
}

void copy_rows(const float* src, int64_t src_ld, int64_t rows, int64_t channels, float* dst, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(dst + r * ld, src + r * src_ld, static_cast<size_t>(channels) * sizeof(float));
}

// From memory that is channels last itself: rows are copied.
void load_last(const Memory& from, const Bases& bases, const Region& region, float* dst, int64_t ld) {
  const float* data = reinterpret_cast<const float*>(from.read(bases));
  const Box& box = region.box;
  const int64_t width = box.extent[2], step = from.dims.space[2] == 1 ? 0 : from.ld;
  for (int64_t d = 0; d < box.extent[0]; ++d) {
    for (int64_t h = 0; h < box.extent[1]; ++h, dst += width * ld) {
      const int64_t row = position_row(from.dims, region.n, box.lo[0] + d, box.lo[1] + h, box.lo[2]);
      const float* src = data + row * from.ld + (from.dims.c == 1 ? 0 : region.c0);
      if (step == ld && ld == padded(region.channels)) {
        std::memcpy(dst, src, static_cast<size_t>(width * ld) * sizeof(float));
      } else {
        copy_rows(src, step, width, region.channels, dst, ld);
      }
    }
  }
}

}  // namespace

void store_elements(const float* src, int64_t n, const Memory& to, const Bases& bases, int64_t at,
                    bool stream) {
  char* data = to.write(bases);
  if (to.split()) return split_rows(src, n, 1, n, halves(data, at), halves(to.lower(bases), at), n);
  shrink(src, n, data + at * size_of(to.type), to.type, stream);
}

void load_positions(const Memory& from, const Bases& bases, const Region& region, float* dst, int64_t ld,
                    float* stage) {
  if (from.channels_last()) return load_last(from, bases, region, dst, ld);
  const Reader elements(from, bases);
  const int64_t width = region.box.extent[2];
  const bool broadcast = from.dims.space[2] == 1;
  float* row = dst;
  for (int64_t d = 0; d < region.box.extent[0]; ++d) {
    for (int64_t h = 0; h < region.box.extent[1]; ++h, row += width * ld) {
      for (int64_t c = 0; c < region.channels; c += kLane) {
        const int64_t channels = std::min(kLane, region.channels - c);
        for (int64_t w = 0; w < width; w += kStageWidth) {
          const int64_t n = std::min(kStageWidth, width - w);
          for (int64_t k = 0; k < channels; ++k) {
            const int64_t at = row_offset(from.dims, region.n, region.c0 + c + k, region.box.lo[0] + d,
                                          region.box.lo[1] + h);
            float* line = ld == 1 ? row + w : stage + k * kStageWidth;
            if (broadcast) {
              std::fill(line, line + n, static_cast<float>(elements[at]));
            } else {
              load_elements(from, bases, at + region.box.lo[2] + w, n, line);
            }
          }
          if (ld != 1) transpose(stage, kStageWidth, channels, n, row + w * ld + c, ld);
        }
      }
    }
  }
}

void store_positions(const float* src, int64_t ld, const Region& region, const Memory& to, const Bases& bases,
                     bool stream, float* stage) {
  char* data = to.write(bases);
  // Rows, then planes, that follow each other in memory are one run.
  Extents run = region.box.extent;
  if (run[2] == to.dims.space[2]) {
    run = {run[0], 1, run[1] * run[2]};
    if (region.box.extent[1] == to.dims.space[1]) run = {1, 1, run[0] * run[2]};
  }
  const Extents& lo = region.box.lo;
  for (int64_t d = 0; d < run[0]; ++d) {
    for (int64_t h = 0; h < run[1]; ++h, src += run[2] * ld) {
      const int64_t start = ((lo[0] + d) * to.dims.space[1] + lo[1] + h) * to.dims.space[2] + lo[2];
      if (to.channels_last()) {
        float* row =
            reinterpret_cast<float*>(data) + (region.n * to.dims.voxels() + start) * to.ld + region.c0;
        if (ld == to.ld && region.channels == to.dims.c) {
          shrink(src, run[2] * ld, row, Dtype::kF32, stream);
        } else {
          copy_rows(src, ld, run[2], region.channels, row, to.ld);
        }
        continue;
      }
      for (int64_t c = 0; c < region.channels; c += kLane) {
        const int64_t channels = std::min(kLane, region.channels - c);
        for (int64_t w = 0; w < run[2]; w += kStageWidth) {
          const int64_t n = std::min(kStageWidth, run[2] - w);
          const float* from = src + w * ld + c;
          const int64_t voxels = to.dims.voxels();
          const int64_t at = (region.n * to.dims.c + region.c0 + c) * voxels + start + w;
          if (ld == 1) {
            store_elements(src + w, n, to, bases, at, stream);
            continue;
          }
          if (to.type == Dtype::kF32 && !to.split()) {  // straight from the tile to its lines
            float* line = reinterpret_cast<float*>(data) + at;
            if (stream && transpose_stream(from, ld, n, channels, line, voxels)) continue;
            if (!stream) {
              transpose(from, ld, n, channels, line, voxels);
              continue;
            }
          }
          transpose(from, ld, n, channels, stage, kStageWidth);
          if (to.split()) {
            split_rows(stage, kStageWidth, channels, n, halves(data, at), halves(to.lower(bases), at),
                       voxels);
            continue;
          }
          shrink_rows(stage, kStageWidth, channels, n, data + at * size_of(to.type), voxels, to.type, stream);
        }
      }
    }
  }
}

void load_channels(const Memory& from, const Bases& bases, const Region& region, const Extents& extent,
                   int64_t first, int64_t positions, float* dst, int64_t ld) {
  const Reader elements(from, bases);
  if (from.channels_last() && from.dims.space == extent && from.dims.c > 1) {
    const int64_t row = (from.dims.n == 1 ? 0 : region.n) * from.dims.voxels() + first;
    const float* src = reinterpret_cast<const float*>(from.read(bases)) + row * from.ld + region.c0;
    return transpose(src, from.ld, positions, region.channels, dst, ld);
  }
  for (int64_t c = 0; c < region.channels; ++c, dst += ld) {
    if (from.dims.space == extent && !from.channels_last()) {
      const int64_t at = row_offset(from.dims, region.n, region.c0 + c, 0, 0) + first;
      load_elements(from, bases, at, positions, dst);
      continue;
    }
    for (int64_t p = 0; p < positions; ++p) {
      const int64_t w = (first + p) % extent[2], h = (first + p) / extent[2] % extent[1],
                    d = (first + p) / (extent[2] * extent[1]);
      const int64_t at =
          row_offset(from.dims, region.n, region.c0 + c, d, h) + (from.dims.space[2] == 1 ? 0 : w);
      dst[p] = static_cast<float>(elements[at]);
    }
  }
}

void store_channels(const float* src, int64_t ld, const Region& region, int64_t first, int64_t positions,
                    const Memory& to, const Bases& bases, bool stream) {
  if (to.channels_last()) {
    float* dst =
        reinterpret_cast<float*>(to.write(bases)) + (region.n * to.dims.voxels() + first) * to.ld + region.c0;
    return transpose(src, ld, region.channels, positions, dst, to.ld);
  }
  for (int64_t c = 0; c < region.channels; ++c) {
    const int64_t at = (region.n * to.dims.c + region.c0 + c) * to.dims.voxels() + first;
    store_elements(src + c * ld, positions, to, bases, at, stream);
  }
}

void load_vector(const Memory& from, const Bases& bases, int64_t n, int64_t c0, int64_t channels,
                 float* dst) {
  const Reader elements(from, bases);
  const int64_t start = (from.dims.n == 1 ? 0 : n) * from.dims.c;
  for (int64_t c = 0; c < channels; ++c) {
    dst[c] = static_cast<float>(elements[start + (from.dims.c == 1 ? 0 : c0 + c)]);
  }
}

}  // namespace upweave::cpu
