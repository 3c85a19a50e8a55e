#pragma once
// A tile program: what happens to one tile between memory and memory, as a list of steps over a few buffers
// that stay in a core's cache. The same steps serve two layouts:
// - channels last: rows are positions, columns channels. A convolution makes it; channel norms and pools are
//   local in it.
// - channels first: rows are channels of one sample, columns positions. Reductions over space are local.
#include <memory>
#include <vector>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/values.h"
#include "graph/ops/norms.h"

namespace upweave::cpu {

enum class Layout : uint8_t { kChannelsLast, kChannelsFirst };

// What a value varies along: positions and channels, positions, channels, nothing. kStats: (mean, variance)
// or (maximum, sum) of each channel in float64.
enum class Kind : uint8_t { kFull, kLine, kVector, kScalar, kStats };

// A resolution of the tile: level 0 is what the tile is cut from, pools make coarser ones.
struct Level {
  Extents stride = {1, 1, 1};  // positions of level 0 to one of this level
  Extents extent = {1, 1, 1};  // of the whole tensor
};

struct Slot {
  Kind kind = Kind::kFull;
  int level = 0;
  int buffer = -1;
  Memory alias;  // used where it lies: float32 rows of whole vectors, or a tile that was kept
};

struct Step {
  enum class What : uint8_t {
    kLoad,          // out <- memory
    kStore,         // memory <- x
    kPointwise,     // out <- fn(x, y)
    kAffine,        // out <- (x - y) * z + w
    kScale,         // out <- x / y * z, y and z a value a channel
    kFoldChannels,  // out(line) <- fold over channels of x
    kSoftmaxRows,   // over channels (channels last) or space (channels first)
    kRmsNorm,       // over channels
    kLayerNorm,     // over channels
    kNormLast,      // over `trailing` positions, rms if `rms`
    kPool,          // out at a coarser level
    kNormPool,      // the average pool of a norm over channels, rms if `rms`
    kMoments,       // out(stats) <- moments of x over space (channels first)
    kFoldSpace,     // out(vector) <- fold over space of x (channels first)
    kFactors,       // y, z, w <- center, scale, shift of normalize, from x (stats) or memory
    kExpFactors,    // y, z <- maximum, 1/sum of softmax_apply
    kPartial,       // this tile's share of a reduction
  };
  What what;
  Fn fn = Fn::kCopy;
  Fold fold = Fold::kSum;
  Pooling pooling = Pooling::kMax;
  bool rms = false;
  float a = 0, b = 0;
  double eps = 0;
  int x = -1, y = -1, z = -1, w = -1, out = -1;  // slots
  Extents window = {1, 1, 1}, stride = {1, 1, 1};
  int64_t trailing = 1, groups = 1;
  NormSets::Kind sets = NormSets::Kind::kInstance;
  Memory memory, weight, bias;  // load, store; factors' statistics and affine
  int reduction = -1;
  bool stream = false;  // store past the caches

  bool row_local(Layout layout) const {
    switch (what) {
      case What::kPointwise:
      case What::kAffine:
      case What::kScale:
        return true;
      case What::kFoldChannels:
      case What::kRmsNorm:
      case What::kLayerNorm:
        return layout == Layout::kChannelsLast;
      case What::kSoftmaxRows:
        return layout == Layout::kChannelsLast;
      default:
        return false;
    }
  }
};

// A reduction over more than one tile: every tile leaves two float64 a channel, finish() combines them in
// order.
struct Reduction {
  enum class What : uint8_t { kMoments, kExpSum, kFold } what = What::kFold;
  Fold fold = Fold::kSum;
  NormSets::Kind sets =
      NormSets::Kind::kInstance;  // by (n, channel), by (n, group), by channel over the batch
  int64_t groups = 1;
  int level = 0;
  Memory result;  // {2, sets} for moments and stats, (n, c) for folds
};

// A value that a convolution reads, or one of several along its channels, with what is done to it on the way
// in: a pool, then steps element by element. Of those, kPointwise meets the number `a`, or a value in
// `memory`: one in all, one a channel of each sample or all, or one an element; kFactors normalizes.
struct ConvSource {
  Memory memory;
  int64_t c0 = 0;  // its first channel in what the convolution sees
  Dims dims;       // behind the pool
  bool pool = false;
  Pooling pooling = Pooling::kAvg;
  Extents window = {1, 1, 1}, stride = {1, 1, 1};
  std::vector<Step> steps;

  bool as_given() const { return !pool && steps.empty(); }
};

// A convolution at the head of a channels-last program.
struct ConvStage {
  std::shared_ptr<const ConvKernel> kernel;
  int64_t packed_offset = 0;
  int64_t blocks = 1;  // the output's channels are one of so many blocks
  std::vector<ConvSource> sources;
  Dims in;          // what the convolution sees
  int out = -1;     // slot
  double cost = 0;  // of a sample, in multiply-adds of 16 floats
};

struct TileProgram {
  Layout layout = Layout::kChannelsLast;
  Dims dims;                 // at level 0; c is the channels of every full value
  int64_t ld_channels = 16;  // channels last: elements of a row
  std::vector<Level> levels;
  std::vector<Slot> slots;
  int buffers = 0;
  std::vector<int> buffer_level;  // sizes: positions of that level ...
  std::vector<Kind> buffer_kind;  // ... of a value of that kind
  std::vector<Step> steps;
  std::vector<Reduction> reductions;
  std::unique_ptr<ConvStage> conv;
  Extents tile = {0, 0, 0};        // if another launch's tiles are taken up
  Extents multiple = {1, 1, 1};    // tile extents at level 0 are multiples of these
  std::array<bool, 3> whole = {};  // axes that a tile may not cut
  int64_t channel_multiple = 1;    // channels first
  bool local_space = false;        // channels first: a tile holds all of space
  std::string text;                // for describe()
};

// Chooses tiles for the cache and makes the launch. `cache_bytes` is the level-2 cache of one core.
std::unique_ptr<Launch> make_tile_launch(TileProgram program, int64_t cache_bytes);

int64_t cache_bytes_per_core();
void set_cache_bytes_for_test(int64_t bytes);  // 0: the machine's own again

}  // namespace upweave::cpu
