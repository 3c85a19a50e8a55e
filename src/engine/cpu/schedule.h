#pragma once
// Turns the passes of a plan into launches: tile programs as far as they reach, single nodes where they do
// not.
#include <memory>
#include <vector>

#include "engine/cpu/tile/build.h"

namespace upweave::cpu {

constexpr int64_t kScratchBytes = int64_t{16} << 20;  // what values between passes may take, a thread

// What pack() leaves in the packed block.
struct PackedValue {
  Id node;
  int64_t offset;
  Dtype type;  // parameters as they came; what is derived from them in float64
};
struct PackedKernel {
  std::shared_ptr<const ConvKernel> kernel;
  Id weights;  // the node whose value is packed
  int64_t offset;
  double cost;  // of a sample's outputs, in multiply-adds of 16 floats
};

struct Schedule {
  std::vector<std::unique_ptr<Launch>> launches;
  std::vector<PackedValue> values;
  std::vector<PackedKernel> kernels;
  std::vector<Lifetime> lifetimes;  // of what lies in the workspace; steps are launches
  int64_t packed_bytes = 0;
  bool cuts_samples = true;  // no launch needs all samples at once

  // Of a slice, what its convolution has packed serves its sample's next block.
  int64_t scratch_bytes(bool sliced, int threads) const;
};

// Launches for one part of the plan. Of a slice, algorithms and tiles are chosen as for all blocks, so that
// results do not depend on how many there are. Places that have no offset yet are taken to lie apart.
Schedule make_schedule(const FusedPlan& plan, const Options& options);

// What the plan asks the engine for.
Limits limits(const Options& options);
Footprint measure(const FusedPlan& plan, const Options& options);
// bfloat16 products are exact, so that dot products of them serve where both operands are bfloat16 as given:
// whether they are the faster way for this pass's convolution, whose weights are centred.
bool wants_given_weights(const FusedPlan& plan, const Pass& pass, const Options& options);

// With a number of threads.
Options settled(Options options);

}  // namespace upweave::cpu
