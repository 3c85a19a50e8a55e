#pragma once
// Data as people have it, none of it normal: what a transform of a tile can do damage to. Nothing here is
// rounded to an element type.
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace upweave::testing {

enum class DataKind {
  kImage,          // 0 to 255 inside of a few boxes, nothing around them
  kCt,             // -1000 or 0 around, tissue of -100 to 100 inside, bone of up to 3000
  kSpikes,         // one element in a hundred is not zero
  kMel,            // power over frequencies: ten orders of magnitude, quiet frames between
  kMasked,         // normal, all channels masked by the same boxes
  kChannelMasked,  // normal, each channel masked by a box of its own
  kRelu,           // normal, negative values are zero
  kLabels,         // one channel of each position is 1
  kOffset,         // 1e4 and a little
  kLognormal,      // exp(3 z), of both signs
  kUniform,        // 0 to 1
};
constexpr DataKind kDataKinds[] = {DataKind::kImage,     DataKind::kCt,     DataKind::kSpikes,
                                   DataKind::kMel,       DataKind::kMasked, DataKind::kChannelMasked,
                                   DataKind::kRelu,      DataKind::kLabels, DataKind::kOffset,
                                   DataKind::kLognormal, DataKind::kUniform};
inline const char* name_of(DataKind kind) {
  constexpr const char* kNames[] = {"image", "ct",     "spikes", "mel",       "masked", "channel masks",
                                    "relu",  "labels", "offset", "lognormal", "uniform"};
  return kNames[static_cast<int>(kind)];
}

// Positions that lie in one of a few random boxes.
template <class Rng>
std::vector<bool> random_boxes(const std::array<int64_t, 3>& space, int boxes, Rng& rng) {
  std::vector<bool> inside(static_cast<size_t>(space[0] * space[1] * space[2]));
  for (int b = 0; b < boxes; ++b) {
    int64_t lo[3], hi[3];
    for (int a = 0; a < 3; ++a) {
      lo[a] = static_cast<int64_t>(rng() % static_cast<uint64_t>(space[a]));
      hi[a] = lo[a] + 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>((space[a] + 1) / 2));
    }
    for (int64_t d = lo[0]; d < std::min(hi[0], space[0]); ++d) {
      for (int64_t h = lo[1]; h < std::min(hi[1], space[1]); ++h) {
        for (int64_t w = lo[2]; w < std::min(hi[2], space[2]); ++w)
          inside[static_cast<size_t>((d * space[1] + h) * space[2] + w)] = true;
      }
    }
  }
  return inside;
}

// One sample: (channels, space...), row-major.
template <class Rng>
std::vector<double> make_kind(DataKind kind, int64_t channels, const std::array<int64_t, 3>& space,
                              Rng& rng) {
  const size_t voxels = static_cast<size_t>(space[0] * space[1] * space[2]);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const std::vector<bool> inside = random_boxes(space, 2, rng), bone = random_boxes(space, 1, rng);
  std::vector<bool> own;
  const double air = rng() % 2 ? -1000 : 0;
  std::vector<double> x(static_cast<size_t>(channels) * voxels);
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    if (kind == DataKind::kChannelMasked) own = random_boxes(space, 1, rng);
    for (size_t i = 0; i < voxels; ++i) {
      double& v = x[c * voxels + i];
      switch (kind) {
        case DataKind::kImage:
          v = inside[i] ? std::floor(256 * uniform(rng)) : 0;
          break;
        case DataKind::kCt:
          v = !inside[i] ? air : bone[i] ? 3000 * uniform(rng) : 100 * normal(rng);
          break;
        case DataKind::kSpikes:
          v = rng() % 100 == 0 ? normal(rng) : 0;
          break;
        case DataKind::kMel: {
          const double quiet = i % static_cast<size_t>(space[2]) % 5 == 0 ? -8 : 0;
          v = std::pow(10, quiet - 10 * static_cast<double>(c) / static_cast<double>(channels)) *
              -std::log(uniform(rng) + 1e-12);
          break;
        }
        case DataKind::kMasked:
          v = inside[i] ? normal(rng) : 0;
          break;
        case DataKind::kChannelMasked:
          v = own[i] ? normal(rng) : 0;
          break;
        case DataKind::kRelu:
          v = std::max(0.0, normal(rng));
          break;
        case DataKind::kLabels:
          v = 0;
          break;
        case DataKind::kOffset:
          v = 1e4 + normal(rng);
          break;
        case DataKind::kLognormal:
          v = std::exp(3 * normal(rng)) * (rng() % 2 ? 1 : -1);
          break;
        case DataKind::kUniform:
          v = uniform(rng);
          break;
      }
    }
  }
  if (kind == DataKind::kLabels) {
    for (size_t i = 0; i < voxels; ++i) x[rng() % static_cast<uint64_t>(channels) * voxels + i] = 1;
  }
  return x;
}

}  // namespace upweave::testing
