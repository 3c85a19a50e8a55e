#include "engine/cpu/tile/work.h"

#include <algorithm>

#include "graph/operation.h"

namespace upweave::cpu {
namespace {

// Vector operations on 16 values, in units of a multiply-add of the convolution; fitted as in predict.cpp.
constexpr double kSimple = 3, kDivision = 10, kExponential = 25, kGelu = 40;
constexpr double kLoadStore = 12;    // with a transposition between rows and channels
constexpr double kPackedInput = 12;  // the same of a convolution's input, with borders
constexpr double kNorm = 16, kFold = 4, kPooled = 4, kMomented = 8;

double cost_of(Fn fn) {
  if (fn == Fn::kCopy || fn == Fn::kSign) return kSimple;
  if (fn == Fn::kExpBelow) return kExponential;
  if (fn == Fn::kGeluTanh) return kGelu;
  if (fn == Fn::kDiv) return kDivision;
  const double ops = operation(static_cast<Op>(fn)).ops_per_element;
  return ops < 5 ? kSimple : ops < 12 ? kDivision : ops < 15 ? kExponential : kGelu;
}

double cost_of(const Step& step) {
  using What = Step::What;
  switch (step.what) {
    case What::kLoad:
    case What::kStore:
      return kLoadStore;
    case What::kPointwise:
      return cost_of(step.fn);
    case What::kAffine:
    case What::kScale:
      return kSimple;
    case What::kFoldChannels:
    case What::kFoldSpace:
      return step.fold == Fold::kLogSumExp ? 3 * kExponential : kFold;
    case What::kSoftmaxRows:
      return kExponential + kFold;
    case What::kRmsNorm:
    case What::kLayerNorm:
    case What::kNormLast:
      return kNorm;
    case What::kPool:
      return kPooled;
    case What::kNormPool:
      return kNorm + kPooled;
    case What::kMoments:
    case What::kPartial:
      return kMomented;
    case What::kFactors:
    case What::kExpFactors:
      return 0;
  }
  return 0;
}

}  // namespace

Work tile_work(const TileProgram& p, const TileGrid& grid, int64_t cache_bytes) {
  Work work;
  work.tiles = p.dims.n * grid.per_sample;
  const auto samples = static_cast<double>(p.dims.n);
  // Values of a slot, in vectors: along channels where rows are positions, along positions otherwise.
  auto vectors = [&](int slot) {
    const Slot& s = p.slots[static_cast<size_t>(slot)];
    const Extents& e = p.levels[static_cast<size_t>(std::max(0, s.level))].extent;
    const auto positions = static_cast<double>(e[0] * e[1] * e[2]);
    switch (s.kind) {
      case Kind::kFull:
        return samples * (p.layout == Layout::kChannelsLast
                              ? positions * static_cast<double>(p.ld_channels) / kLane
                              : static_cast<double>(p.dims.c) * positions / kLane);
      case Kind::kLine:
        return samples * positions / kLane;
      default:
        return 0.0;
    }
  };
  for (const Step& step : p.steps) {
    // What reads a finer level does it value by value of that level.
    const int slot = step.x >= 0 ? step.x : step.out;
    if (slot < 0) continue;
    work.steps += vectors(slot) * cost_of(step);
    if (step.what == Step::What::kLoad || step.what == Step::What::kStore)
      work.bytes += static_cast<double>(step.memory.dims.count() * step.memory.element_bytes());
  }
  for (const Slot& slot : p.slots) {  // used where they lie
    if (slot.alias.exists())
      work.bytes += static_cast<double>(slot.alias.dims.count() * slot.alias.element_bytes());
  }
  if (!p.conv) return work;
  const ConvStage& conv = *p.conv;
  work.products = conv.cost * samples;
  const auto read = static_cast<double>(conv.input.dims.count());
  work.bytes += read * static_cast<double>(conv.input.element_bytes());
  double points = kPackedInput;
  for (const ConvStage::Point& point : conv.points) points += cost_of(point.fn);
  const double packed =
      samples * static_cast<double>(conv.in.voxels() * round_up(conv.kernel->channels_in(), 1)) / kLane;
  work.steps += packed * points + (conv.pool ? read / kLane * kPooled : 0);
  const auto weights = static_cast<double>(conv.kernel->packed_bytes());
  if (weights > static_cast<double>(cache_bytes) / 2)
    work.weights = weights * static_cast<double>(work.tiles);
  return work;
}

}  // namespace upweave::cpu
