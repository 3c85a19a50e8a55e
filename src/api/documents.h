#pragma once
// The five pipelines that have a C function each: which of the function's numbers is which extent or setting.
#include <span>
#include <vector>

#include "upweave/upweave.hpp"

namespace upweave {

struct Document {
  struct Tensor {
    const char* name;
    std::vector<const char*> extents;  // names of sizes
  };
  struct Setting {
    const char* name;                 // of the text
    std::vector<const char*> values;  // names of sizes or reals, one per axis
  };
  const char* slug;
  std::vector<Tensor> tensors;     // in the order of the function's pointers
  std::vector<const char*> sizes;  // in the order of the function's numbers
  std::vector<const char*> reals;
  std::vector<Setting> settings;
};

extern const Document kSumLayernormAvgpoolGelu, kLayernormGeluScaling, kMaxMaxSum,
    kAvgpoolClampSoftmaxMultiply, kBatchnormTanhMaxpoolGroupnorm;

// The compiled plan for these numbers, from the cache if it is there; `gpu` is the calling thread's, or -1
// for plans that run elsewhere. Throws an Error that names the number.
Plan plan_of(const Document& document, const Options& options, std::span<const size_t> sizes,
             std::span<const double> reals, int gpu = -1);

}  // namespace upweave
