#include "engine/cuda/describe.h"

#include <algorithm>
#include <cstdlib>

#include "base/dtype.h"
#include "engine/cuda/cost.h"
#include "engine/cuda/cubin.h"
#include "engine/cuda/nvrtc.h"
#include "engine/engine.h"

namespace upweave {
namespace cuda {
namespace {

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); }

// Products of the plan's convolutions on tensor cores: how many fp16 ones make one of the promised accuracy.
double plan_products(const FusedPlan& plan, const Options& options) {
  double sum = 0;
  for (const Pass& pass : plan.passes) {
    for (const Id id : pass.nodes) {
      if (!is(plan.graph[id], Op::kConvTranspose)) continue;
      const bool strict = options.precision == Precision::kStrict;
      const bool wide = options.dtype == Dtype::kF32 || !is_input(plan.graph, plan.graph[id].in[0]);
      sum += flops(plan.graph, id) * (strict ? wide ? 3 : 2 : 1);
    }
  }
  return sum;
}

double end_bytes(const FusedPlan& plan, Dtype dtype) {
  int64_t elements = count(visible_shape(plan.source));
  for (Id id = 0; is_input(plan.source, id); ++id) elements += count(plan.source[id].shape);
  return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

}  // namespace

// Measured on an H200: a copy, a large product of matrices, a loop of FMAs. Other chips are taken to reach
// the same share of what their clocks allow; below Hopper, and where mma.sync is asked for on it, a
// multiprocessor's tensor cores do half as much a cycle.
Rates rates_of(const Device& device, const Chip& chip) {
  Rates rates;
  const bool h200 = device.name.find("H200") != std::string::npos;
  rates.measured = h200 && chip.wgmma;
  if (rates.measured) return rates;
  rates.multiprocessors = device.multiprocessors;
  rates.shared_bytes = static_cast<unsigned>(device.shared_bytes);
  const double per_cycle = chip.wgmma ? 4096 : 2048;
  rates.tensor = 0.71 * device.multiprocessors * device.clock * per_cycle;
  if (h200) return rates;
  rates.scalar = 0.75 * device.multiprocessors * device.clock * 128;
  rates.memory = 0.87 * device.memory_rate;
  return rates;
}

Chip chip_of(const std::optional<Device>& device) {
  Chip chip;
  if (device) {
    chip.major = device->major;
    chip.minor = device->minor;
    chip.shared_bytes = device->shared_bytes;
    chip.multiprocessors = device->multiprocessors;
    chip.wgmma = device->major == 9 && driver().tensor_map;
  }
  if (const char* asked = std::getenv("UPWEAVE_CUDA_MMA"); asked && std::string_view(asked) == "sync")
    chip.wgmma = false;
  return chip;
}

double predict(const Launch& launch, const Rates& rates) {
  // Fewer blocks than multiprocessors leave some idle.
  constexpr int kWarpgroup = 128;
  const Work& work = launch.work;
  const double blocks = static_cast<double>(launch.grid[0]) * launch.grid[1];
  const bool alone = launch.block == kWarpgroup && launch.shared > rates.shared_bytes / 2;
  const double share = std::min(1.0, blocks / rates.multiprocessors) * (alone ? kOneWarpgroup : 1);
  const double value_seconds = work.value_seconds * Rates().scalar / rates.scalar;
  const double products = work.products / (rates.tensor * share), operations = work.operations / rates.scalar,
               memory = work.bytes / rates.memory;
  if (alone) return std::max({products + operations, memory, value_seconds}) + rates.launch;
  if (!work.overlaps) return std::max(products + operations, memory) + value_seconds + rates.launch;
  const double longest = std::max({products, operations, memory});
  return std::max(longest + (products + operations + memory - longest) / kHidden, value_seconds) +
         rates.launch;
}

double predict(const Lowered& lowered, const Rates& rates) {
  double seconds = 0;
  for (const Launch& launch : lowered.run) seconds += predict(launch, rates);
  return seconds;
}

double floor_of(const FusedPlan& plan, const Options& options, const Rates& rates) {
  return std::max(plan_products(plan, options) / rates.tensor, end_bytes(plan, options.dtype) / rates.memory);
}

std::vector<std::string> describe(const FusedPlan& plan, const Options& options, const Lowered& lowered,
                                  const std::string& cubin, const Rates& rates) {
  const std::map<std::string, KernelFacts> kernels = inspect(cubin);
  std::vector<std::string> lines = lowered.notes;
  const auto line = [&](const char* when, const Launch& launch, const std::string& time) {
    const auto found = kernels.find(launch.kernel);
    std::string facts = "not compiled";
    if (found != kernels.end()) {
      facts = fmt::format("{} registers", found->second.registers);
      if (found->second.stack > 0) facts += fmt::format(", {} bytes a thread in memory", found->second.stack);
    }
    lines.push_back(fmt::format("{}  {}: {}x{} blocks of {} threads, {} KB of shared memory, {}{}", when,
                                launch.kernel, launch.grid[0], launch.grid[1], launch.block,
                                launch.shared >> 10, facts, time));
  };
  for (const Launch& launch : lowered.pack) line("pack", launch, "");
  const double total = predict(lowered, rates);
  for (const Launch& launch : lowered.run) {
    const double seconds = predict(launch, rates);
    const auto& [products, operations, bytes, value_seconds, overlaps] = launch.work;
    std::string work;
    if (products > 0) work += fmt::format(", {:.1f} GFLOP on tensor cores", products * 1e-9);
    if (operations > 0) work += fmt::format(", {:.2f} GFLOP beside them", operations * 1e-9);
    if (bytes > 0) work += fmt::format(", {:.1f} MB", bytes * 1e-6);
    line("run ", launch, fmt::format("; {}{}", milliseconds(seconds), work));
  }
  lines.push_back(fmt::format("memory: {:.1f} MB of packed weights, {:.1f} MB of workspace",
                              static_cast<double>(lowered.packed_bytes) * 1e-6,
                              static_cast<double>(lowered.workspace_bytes) * 1e-6));
  const double floor = floor_of(plan, options, rates);
  lines.push_back(fmt::format("predicted: {}, {:.2f} times the floor of {}", milliseconds(total),
                              floor > 0 ? total / floor : 0, milliseconds(floor)));
  lines.push_back(fmt::format(
      "floor: {:.1f} GFLOP of products at {:.0f} TFLOP/s, or input and output of {:.1f} MB at {:.2f} TB/s; "
      "{}",
      plan_products(plan, options) * 1e-9, rates.tensor * 1e-12, end_bytes(plan, options.dtype) * 1e-6,
      rates.memory * 1e-12, rates.measured ? "measured on an H200" : "estimated from the chip's clocks"));
  return lines;
}

namespace {

// What a plan would run on: the current GPU, or an H200 where there is none.
struct Aim {
  std::optional<Device> device;
  std::string why;  // there is none
  Chip chip;
  Rates rates;
};
Aim aim_of(const FusedPlan& plan, const Options& options) {
  if (options.dtype == Dtype::kF64)
    throw fail(Status::kUnsupported, "the CUDA engine has no f64; the reference engine does");
  Aim aim;
  if (count(visible_shape(plan.source)) == 0) return aim;
  try {
    aim.device = current_device();
  } catch (const Error& error) {
    aim.why = error.what();
  }
  aim.chip = chip_of(aim.device);
  Device h200;
  h200.name = "NVIDIA H200";
  h200.multiprocessors = aim.chip.multiprocessors;
  h200.shared_bytes = aim.chip.shared_bytes;
  h200.clock = 1.98e9;
  aim.rates = rates_of(aim.device ? *aim.device : h200, aim.chip);
  return aim;
}

}  // namespace

double predict_anywhere(const FusedPlan& plan, const Options& options) {
  const Aim aim = aim_of(plan, options);
  if (count(visible_shape(plan.source)) == 0) return 0;
  return predict(lower(plan, options, aim.chip), aim.rates);
}

std::vector<std::string> describe_anywhere(const FusedPlan& plan, const Options& options) {
  const Aim aim = aim_of(plan, options);
  if (count(visible_shape(plan.source)) == 0) return {"an empty batch: nothing runs"};
  const Lowered lowered = lower(plan, options, aim.chip);
  std::string cubin, why;
  if (!nvrtc_version(&why).empty()) cubin = compile(lowered.source, aim.chip.arch()).cubin;
  std::vector<std::string> lines = describe(plan, options, lowered, cubin, aim.rates);
  if (!why.empty()) lines.insert(lines.begin(), why);
  lines.insert(lines.begin(), aim.device ? fmt::format("{} (sm_{}{}), kernels for {}", aim.device->name,
                                                       aim.device->major, aim.device->minor, aim.chip.arch())
                                         : fmt::format("for an NVIDIA H200, kernels for {}: there is no GPU "
                                                       "here, so its figures are assumed ({})",
                                                       aim.chip.arch(), aim.why));
  return lines;
}

}  // namespace cuda
}  // namespace upweave
