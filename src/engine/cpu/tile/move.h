#pragma once
// Boxes of whole tensors in and out of tiles.
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/values.h"

namespace upweave::cpu {

constexpr int64_t kStageWidth = 64;  // positions that are transposed at once
constexpr int64_t kStageFloats = kLane * kStageWidth;

// A box of positions, and a range of channels, of sample n of a tensor; axes of extent 1 are broadcast.
struct Region {
  int64_t n = 0, c0 = 0, channels = 1;
  Box box;
};

// Channels last: dst[position*ld + channel]. `stage` holds kStageFloats.
void load_positions(const Memory& from, const Bases& bases, const Region& region, float* dst, int64_t ld,
                    float* stage);
void store_positions(const float* src, int64_t ld, const Region& region, const Memory& to, const Bases& bases,
                     bool stream, float* stage);

// Channels first: positions [first, first + count) of each channel, dst[channel*ld + position]; `extent` is
// what the positions are numbered in.
void load_channels(const Memory& from, const Bases& bases, const Region& region, const Extents& extent,
                   int64_t first, int64_t positions, float* dst, int64_t ld);
void store_channels(const float* src, int64_t ld, const Region& region, int64_t first, int64_t positions,
                    const Memory& to, const Bases& bases, bool stream);

// `n` elements from element `at` on.
void store_elements(const float* src, int64_t n, const Memory& to, const Bases& bases, int64_t at,
                    bool stream);

// One value per channel (or one in all) of sample n, rounded to float32.
void load_vector(const Memory& from, const Bases& bases, int64_t n, int64_t c0, int64_t channels, float* dst);

}  // namespace upweave::cpu
