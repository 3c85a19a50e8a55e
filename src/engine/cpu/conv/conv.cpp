// Which algorithm serves a convolution. Costs are estimates in vector operations of 16 floats; their
// constants were fitted to measurements of the kernels (bench/conv_bench).
#include "engine/cpu/conv/conv.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "engine/cpu/conv/block.h"
#include "engine/cpu/conv/dilated.h"
#include "engine/cpu/conv/direct.h"
#include "engine/cpu/conv/geometry.h"
#include "engine/cpu/conv/toom_fit.h"

namespace upweave::cpu {
namespace {

// Transformed weights are read once a group of tiles: beyond a last-level cache that takes longer than the
// products.
constexpr double kMaxWeightBytes = 16 << 20;
// Outputs of a box that a caller would keep near: transformed weights are read once for all its tiles of a
// phase.
constexpr double kBoxBytes = 512 << 10;
// Products by bfloat16 dot products, of which one holds two.
constexpr double kBf16Gain = 1.9;
// Below this gain the direct kernel's sharper error bound and smaller weights are worth more.
constexpr double kLeastGain = 1.1;
// What a tile takes besides: it is looked at, and its steps begin and end.
constexpr double kPerTile = 160;
// From so many bytes on, transformed weights come from afar for each block of tiles.
constexpr double kFarWeightBytes = 12 << 20, kFarWeights = 1.4;

struct Choice {
  double cost = std::numeric_limits<double>::infinity();  // of one output position of every phase
  Extents tile = {1, 1, 1};
  std::vector<bool> direct_phases;
};

// Which transforms are exact enough to be worth their speed.
enum class Exactness {
  kAsDirect,    // errors about twice those of direct sums on normal data at most: 5 points an axis, or 6 on
                // two axes with the third plain; few enough tiles of normal data need direct sums
  kFewDirect,   // few tiles of normal data need direct sums: more than bfloat16 results show
  kFarBelow16,  // up to 5e-6 of the result, which TF32 rounds away: any that there is
};
bool exact_enough(const ToomAxis (&f)[3], Exactness exactness, int64_t c_in) {
  if (exactness == Exactness::kFarBelow16) return true;
  if (!serves_normal_data(f, c_in)) return false;
  if (exactness == Exactness::kFewDirect) return true;
  int six = 0, transformed = 0;
  for (const ToomAxis& axis : f) {
    if (axis.plain()) continue;
    ++transformed;
    if (axis.points() > 6) return false;
    six += axis.points() == 6;
  }
  return six == 0 || transformed <= 2;
}

// Of one output: its terms, and what it takes to begin and store a sum. Few output channels load as much as
// they multiply, and add lanes in the end; channels by themselves load more.
double direct_cost(const ConvShape& shape, double taps) {
  const int64_t lanes = block_ops().lanes;
  switch (direct_lanes(shape)) {
    case Lanes::kInputs: {
      const double c_out = static_cast<double>(shape.c_out);
      return taps * static_cast<double>(round_up(shape.c_in, 16) / 16) * (c_out + 1.2) + 20;
    }
    case Lanes::kBoth:
      return (2.2 * taps + 3) * static_cast<double>(round_up(shape.c_out, lanes)) / 16;
    case Lanes::kOutputs:
      break;
  }
  // Each group has its own columns, in whole vectors.
  const int64_t columns = round_up(shape.c_out * shape.blocks / shape.groups, lanes) * shape.groups;
  const double c_in = static_cast<double>(shape.c_in / shape.groups);
  return (taps * c_in / 0.97 + 8) * static_cast<double>(columns) / 16;
}

// The share of an axis' taps that reach the tensor, of all its outputs: direct sums leave out the others.
double real_share(const ConvShape& shape, int axis) {
  const int64_t k_end = shape.kernel[axis], out = shape.out[axis], step = shape.step[axis];
  if (out > 4096 || k_end > 64 || shape.stride[axis] > 64) return 1;
  int64_t real = 0, all = 0;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < k_end; ++k) {
      const int64_t i = o * step + shape.padding[axis] - k * shape.dilation[axis];
      if (i % shape.stride[axis] != 0) continue;
      ++all;
      real += i >= 0 && i / shape.stride[axis] < shape.in[axis];
    }
  }
  return all > 0 ? static_cast<double>(real) / static_cast<double>(all) : 1;
}
double real_share(const ConvShape& shape) {
  return real_share(shape, 0) * real_share(shape, 1) * real_share(shape, 2);
}

// Of one phase of one tile: products, the passes of the transforms over nearer and farther caches, weights
// from afar.
double toom_cost(const ToomAxis (&f)[3], const Extents& stride, double c_in, double out_vectors,
                 double tiles) {
  const double nd = f[0].points(), nh = f[1].points(), nw = f[2].points(), n = nd * nh * nw;
  const double m = f[0].m * f[1].m * f[2].m;
  // With few tiles to share them, the weights take longer to arrive than to use.
  const double blocks = f[2].blocks();
  const double narrow = out_vectors <= 2 ? 1.15 : 1;  // blocks that load as much as they multiply
  const double products =
      n * blocks * c_in * out_vectors * narrow * (std::max(1 / 0.92, 4 / tiles) + 0.5 / tiles);
  double input = 4 * n * blocks;
  if (!f[1].plain()) input += 6 * nd * nh * f[2].m / static_cast<double>(stride[2]);
  if (!f[0].plain()) input += 9 * nd * f[1].m * f[2].m / static_cast<double>(stride[1] * stride[2]);
  const double output = 2 * n + 6 * nh * f[0].m * f[2].m + 4 * m;
  return products + input * c_in / 16 + output * out_vectors +
         kPerTile / static_cast<double>(stride[0] * stride[1] * stride[2]);
}

// The cheapest way with tiles of `tile` outputs, each phase transformed or direct.
Choice evaluate(const ConvShape& shape, const ConvGeometry& geometry, const Extents& tile,
                Exactness exactness) {
  Choice choice;
  choice.tile = tile;
  choice.cost = 0;
  double tiles = 1, waste = 1, weights = 0;
  const double real = real_share(shape);
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t positions = (shape.out[axis] + shape.stride[axis] - 1) / shape.stride[axis];
    const int64_t rounded = round_up(positions, tile[axis]);
    tiles *= static_cast<double>(rounded / tile[axis]);
    waste *= static_cast<double>(rounded) / static_cast<double>(positions);
  }
  const double m = static_cast<double>(tile[0] * tile[1] * tile[2]);
  const double out_vectors = static_cast<double>(round_up(shape.c_out * shape.blocks, 16)) / 16,
               c_in = static_cast<double>(shape.c_in);
  tiles = std::clamp(kBoxBytes / (m * static_cast<double>(geometry.phases()) * out_vectors * 64), 1.0,
                     std::min(tiles, 16.0));
  for (int64_t i = 0; i < geometry.phases(); ++i) {
    const auto e = geometry.phase(i);
    ToomAxis f[3];
    bool possible = m > 1;
    for (int axis = 0; axis < 3; ++axis) {
      const auto& taps = geometry.residues[axis][e[axis]].taps;
      f[axis] = toom_axis(tile[axis], static_cast<int64_t>(taps.size()), axis == 2);
      possible = possible && toom_serves(f[axis]);
      // Neighbouring inputs only; all taps of a residue are equally far apart.
      if (taps.size() > 1) possible = possible && taps[0].shift - taps[1].shift == 1;
    }
    const double direct = direct_cost(shape, real * f[0].taps * f[1].taps * f[2].taps);
    const double toom = possible && exact_enough(f, exactness, shape.c_in)
                            ? waste * toom_cost(f, shape.stride, c_in, out_vectors, tiles) / m
                            : std::numeric_limits<double>::infinity();
    choice.direct_phases.push_back(direct <= toom);
    choice.cost += std::min(direct, toom);
    if (toom < direct)
      weights += f[0].points() * f[1].points() * f[2].points() * f[2].blocks() * c_in * out_vectors * 64;
  }
  if (weights > kFarWeightBytes) choice.cost *= kFarWeights;
  if (weights > kMaxWeightBytes) choice.cost = std::numeric_limits<double>::infinity();
  return choice;
}

// Of one output position of every phase, by direct sums.
double all_direct_cost(const ConvShape& shape, const ConvGeometry& geometry) {
  const double real = real_share(shape);
  double cost = 0;
  for (int64_t i = 0; i < geometry.phases(); ++i) {
    const auto e = geometry.phase(i);
    double taps = real;
    for (int axis = 0; axis < 3; ++axis)
      taps *= static_cast<double>(geometry.residues[axis][e[axis]].taps.size());
    cost += direct_cost(shape, taps);
  }
  return cost;
}

// The cheapest transform, if it beats a direct kernel that is `direct_gain` times faster than float32's.
std::unique_ptr<ConvKernel> worthwhile_toom(const ConvShape& shape, double direct_gain, Exactness exactness,
                                            double& cost) {
  if (shape.groups != 1 || shape.step != Extents{1, 1, 1}) return nullptr;
  const Extents period = residue_periods(shape);
  if (!few_residues(period)) return nullptr;
  const ConvShape own = residue_shape(shape, period, {0, 0, 0});
  const ConvGeometry geometry(own);
  const Choice direct = evaluate(own, geometry, {1, 1, 1}, exactness);
  Choice best = direct;
  Extents tile;
  // A box that keeps windows together must also be able to keep tiles whole.
  auto compatible = [&](int axis) {
    const int64_t quantum = shape.stride[axis] * tile[axis] * period[axis], window = shape.window[axis];
    return quantum % window == 0 || window % quantum == 0 || quantum >= shape.out[axis];
  };
  for (tile[0] = 1; tile[0] <= 4; ++tile[0]) {
    for (tile[1] = 1; tile[1] <= 4; ++tile[1]) {
      for (tile[2] = 1; tile[2] <= 4; ++tile[2]) {
        if (!compatible(0) || !compatible(1) || !compatible(2)) continue;
        Choice choice = evaluate(own, geometry, tile, exactness);
        if (choice.cost < best.cost) best = std::move(choice);
      }
    }
  }
  if (best.cost * kLeastGain > direct.cost / direct_gain) return nullptr;
  cost = best.cost;
  return make_toom_conv(shape, best.tile, best.direct_phases,
                        exactness == Exactness::kFarBelow16 ? Precision::kFast : Precision::kStrict);
}

// Null where the machine or the shape has none.
std::unique_ptr<ConvKernel> try_bf16_conv(const ConvShape& shape) {
  try {
    return make_bf16_conv(shape);
  } catch (const Error& e) {
    if (e.status() != Status::kUnsupported) throw;
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<ConvKernel> make_conv_kernel(const ConvShape& shape, Dtype type, Algorithm algorithm,
                                             Precision precision, double* cost) {
  std::unique_ptr<ConvKernel> bf16 = type == Dtype::kBF16 ? try_bf16_conv(shape) : nullptr;
  double unit = 0;  // of one position of every phase
  const auto kept = [&](std::unique_ptr<ConvKernel> kernel) {
    // Blocks of one or two vectors load an input for every multiply-add or two: fitted to measurements.
    const int64_t columns = shape.c_out * shape.blocks / shape.groups;
    if (direct_lanes(shape) == Lanes::kOutputs) unit *= columns <= 16 ? 1.3 : columns <= 32 ? 1.08 : 1;
    for (int axis = 0; axis < 3; ++axis)
      unit *= static_cast<double>((shape.out[axis] + shape.stride[axis] - 1) / shape.stride[axis]);
    if (cost) *cost = unit;
    return kernel;
  };
  if (algorithm == Algorithm::kAuto) {
    const Exactness exactness = precision == Precision::kFast ? Exactness::kFarBelow16
                                : type != Dtype::kF32         ? Exactness::kFewDirect
                                                              : Exactness::kAsDirect;
    if (auto toom = worthwhile_toom(shape, bf16 ? kBf16Gain : 1, exactness, unit))
      return kept(std::move(toom));
  }
  unit = all_direct_cost(shape, ConvGeometry(shape)) / (bf16 ? kBf16Gain : 1);
  return kept(bf16 ? std::move(bf16) : make_direct_conv(shape));
}

Extents box_extent(const ConvKernel& kernel, const ConvShape& shape, int64_t bytes) {
  Box box;
  Extents unit = kernel.tile_quantum();
  for (int axis = 0; axis < 3; ++axis) {
    unit[axis] = std::min(common_multiple(unit[axis], shape.window[axis]), shape.out[axis]);
    box.extent[axis] = unit[axis];
  }
  for (int axis = 2; axis >= 0; --axis) {
    const int64_t line = box.count() / box.extent[axis] * kernel.channels_out() * int64_t{sizeof(float)};
    const int64_t units =
        std::clamp<int64_t>(bytes / line / unit[axis], 1, (shape.out[axis] + unit[axis] - 1) / unit[axis]);
    box.extent[axis] = std::min(units * unit[axis], shape.out[axis]);
    if (box.extent[axis] < shape.out[axis]) break;
  }
  return box.extent;
}

}  // namespace upweave::cpu
