#pragma once
// What explain says of a program of the CUDA engine: its kernels, and how long they should take.
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/driver.h"
#include "engine/cuda/lower.h"

namespace upweave::cuda {

// A GPU's rates as they are reached, not as they are advertised.
struct Rates {
  double tensor = 762e12;   // operations a second of fp16 products
  double scalar = 25e12;    // float32 operations a second outside of tensor cores, an FMA counting as one
  double memory = 4.25e12;  // bytes a second
  double launch = 2.5e-6;   // seconds from one kernel's end to the next one's work
  int multiprocessors = 132;
  unsigned shared_bytes = 227 << 10;
  bool measured = true;
};
Rates rates_of(const Device& device, const Chip& chip);

// What kernels are generated for on a device, or on an H200 if there is none; $UPWEAVE_CUDA_MMA=sync asks for
// mma.sync.
Chip chip_of(const std::optional<Device>& device);

// Seconds that one launch should take: products, then what follows them in registers, while memory moves; or
// all three at once, of which a sixth of the shorter ones was seen to remain.
double predict(const Launch& launch, const Rates& rates);
double predict(const Lowered& lowered, const Rates& rates);  // all of a run's
// Seconds below which no program comes: all products, or each byte of the input and the output once.
double floor_of(const FusedPlan& plan, const Options& options, const Rates& rates);

// What a compiled program would say, on this GPU or, where there is none, on an H200; kernels are compiled
// for their registers' sake only if NVRTC is here, and not to predict.
std::vector<std::string> describe_anywhere(const FusedPlan& plan, const Options& options);
double predict_anywhere(const FusedPlan& plan, const Options& options);

// One line a fact. `cubin` may be empty: then nothing is known of registers.
std::vector<std::string> describe(const FusedPlan& plan, const Options& options, const Lowered& lowered,
                                  const std::string& cubin, const Rates& rates);

}  // namespace upweave::cuda
