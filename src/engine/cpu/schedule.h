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
  int64_t packed_bytes = 0, workspace_bytes = 0;  // workspace: values between launches
  int64_t kept_bytes = 0;                         // statistics over the batch
  bool cuts_samples = true;                       // no launch needs all samples at once
};

// `plan` may be a slice, of one of `blocks` blocks of channels: algorithms and tiles are then chosen as for
// all of them, so that results do not depend on how many there are. 0: it is the whole.
Schedule make_schedule(const FusedPlan& plan, const Options& options, int64_t blocks = 0);

}  // namespace upweave::cpu
