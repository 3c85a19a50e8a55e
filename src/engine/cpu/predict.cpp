#include "engine/cpu/predict.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "engine/cpu/conv/block.h"

namespace upweave::cpu {
namespace {

// Fitted to pipelines and single convolutions on two cores of a Zen 4 (docs/performance.md, "Predicted").
constexpr double kThreadBytes = 20e9;   // memory's rate for one thread
constexpr double kMostBytes = 100e9;    // and for all of a machine's
constexpr double kWeightBytes = 250e9;  // of weights from the last-level cache, most of it called in ahead
constexpr double kScalar = 4e-9;        // a value in float64: a load, a function through a pointer, a store
constexpr double kBarrier = 4e-6;       // threads begin, meet and end
constexpr double kHidden = 0.5;         // of the shorter of computing and moving, what the longer one hides

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The convolutions' own inner product, from the first-level cache: the best of several tries, for neighbours
// only make it slower.
double measure() {
  const BlockOps& ops = block_ops();
  constexpr int64_t kDepth = 64, kProducts = 200;
  const int columns = ops.panel_vectors * ops.lanes;
  std::vector<float> rows(kBlockRows * kDepth, 1e-3F), out(static_cast<size_t>(kBlockRows * columns)),
      weights(static_cast<size_t>(kDepth * columns), 1e-3F);
  const int64_t offset = 0, skip = 0;
  BlockProduct product{};
  for (int r = 0; r < kBlockRows; ++r) {
    product.rows[r] = rows.data() + r * kDepth;
    product.out[r] = out.data() + static_cast<int64_t>(r) * columns;
  }
  product.offsets = &offset;
  product.skips = &skip;
  product.segments = 1;
  product.depth = kDepth;
  product.weights = weights.data();
  product.columns = columns;
  double best = 1;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const double start = thread_seconds();
    for (int64_t i = 0; i < kProducts; ++i) ops.product[kBlockRows - 1](product);
    best = std::min(best, thread_seconds() - start);
  }
  return static_cast<double>(kProducts * kDepth * kBlockRows) * columns / 16 / std::max(best, 1e-9);
}

}  // namespace

double vectors_per_second() {
  static const double rate = measure();
  return rate;
}

double predicted_seconds(const Work& work, int threads) {
  const double n = std::max(1, threads), rate = vectors_per_second();
  // The thread with most tiles is the last.
  const auto tiles = static_cast<double>(std::max<int64_t>(1, work.tiles));
  const double most = static_cast<double>((std::max<int64_t>(1, work.tiles) + threads - 1) / threads) / tiles;
  const double computing =
      ((work.products + work.steps) / rate + work.scalars * kScalar + work.weights / kWeightBytes) *
      std::max(1 / n, most);
  const double moving = work.bytes / std::min(kMostBytes, n * kThreadBytes);
  return std::max(computing, moving) + (1 - kHidden) * std::min(computing, moving) + kBarrier;
}

}  // namespace upweave::cpu
