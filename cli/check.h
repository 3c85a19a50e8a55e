#pragma once
// Seeded data for a plan, and its answer held against the float64 reference.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/device.h"
#include "engine/reference/verify.h"

namespace upweave::cli {

// Tensors for every name of the plan: normal, signed, scaled so that the convolution's values are of size 1
// and nothing saturates. The same seed gives the same bits everywhere.
struct Case {
  Case(const Plan& plan, uint64_t seed);
  Tensors tensors() const;  // where the engine wants them
  Tensors inputs() const;
  Tensors parameters() const;
  void* result() { return output_there ? output_there->data() : output.data(); }
  Outputs extra();
  void run() { plan.run(tensors(), result(), extra()), wait(); }
  void wait();   // until a device has finished
  void fetch();  // brings the result home from a device

  Plan plan;
  std::map<std::string, std::vector<std::byte>> data;
  std::vector<std::byte> output;  // poisoned: an element that nobody writes is a NaN
  std::map<std::string, std::vector<std::byte>> extra_outputs;
  std::unique_ptr<DeviceBuffer> output_there;  // for an engine on a device
  std::map<std::string, DeviceBuffer> inputs_there, extra_there;
};

std::string input_shapes(const Plan& plan);  // "2x3x8x8, 2x4x16x16"

// Fetches the case's output and compares it, elementwise, with the reference and its derived error bound.
Verdict compare(Case& c);

}  // namespace upweave::cli
