#include "engine/cpu/tile/work.h"

#include <algorithm>

#include "graph/operation.h"

namespace upweave::cpu {
namespace {

// Vector operations on 16 values, in units of a multiply-add of the convolution; fitted as in predict.cpp.
constexpr double kSimple = 3, kDivision = 10, kExponential = 25, kGelu = 40;
constexpr double kLoadStore = 12;    // with a transposition between rows and channels
constexpr double kCopied = 3;        // rows from channels last to channels last
constexpr double kPackedInput = 12;  // a convolution's input, transposed, with borders
constexpr double kNorm = 16, kFold = 4, kPooled = 4, kMomented = 8;

double cost_of(Fn fn) {
  if (fn == Fn::kCopy || fn == Fn::kSign) return kSimple;
  if (fn == Fn::kExpBelow) return kExponential;
  if (fn == Fn::kGeluTanh) return kGelu;
  if (fn == Fn::kDiv) return kDivision;
  const double ops = operation(static_cast<Op>(fn)).ops_per_element;
  return ops < 5 ? kSimple : ops < 12 ? kDivision : ops < 15 ? kExponential : kGelu;
}

double cost_of(const Step& step, Layout layout) {
  using What = Step::What;
  switch (step.what) {
    case What::kLoad:
    case What::kStore:
      return step.memory.channels_last() && layout == Layout::kChannelsLast ? kCopied : kLoadStore;
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
    work.steps += vectors(slot) * cost_of(step, p.layout);
    if (step.what == Step::What::kLoad || step.what == Step::What::kStore) work.bytes += step.memory.bytes();
  }
  for (const Slot& slot : p.slots) {  // used where they lie
    if (slot.alias.exists()) work.bytes += slot.alias.bytes();
  }
  if (!p.conv) return work;
  const ConvStage& conv = *p.conv;
  work.products = conv.cost * samples;
  for (const ConvSource& source : conv.sources) {
    work.bytes += source.memory.bytes();
    double points = source.memory.channels_last() ? kCopied : kPackedInput;
    for (const Step& step : source.steps) {
      points += step.what == Step::What::kFactors ? kSimple : cost_of(step.fn);
      if (!step.memory.exists() || step.memory.dims.voxels() == 1) continue;
      work.bytes += step.memory.bytes();
      if (!step.memory.channels_last()) points += kLoadStore;
    }
    const double share = static_cast<double>(source.dims.c) / static_cast<double>(conv.in.c);
    const double packed =
        samples * share * static_cast<double>(conv.in.voxels() * conv.kernel->channels_in()) / kLane;
    const auto read = static_cast<double>(source.memory.dims.count());
    work.steps += packed * points + (source.pool ? read / kLane * kPooled : 0);
  }
  const auto weights = static_cast<double>(conv.kernel->packed_bytes());
  if (weights > static_cast<double>(cache_bytes) / 2)
    work.weights = weights * static_cast<double>(work.tiles);
  return work;
}

}  // namespace upweave::cpu
