#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "engine/cuda/driver.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/nvrtc.h"
#include "engine/engine.h"

// The CUDA engine's program: kernels compiled for this plan and this device, launched in order on the
// caller's stream.
namespace upweave {
namespace {

using namespace cuda;

constexpr int kMaxDynamicShared = 8, kRegisters = 4, kLocalBytes = 3;  // CU_FUNC_ATTRIBUTE_...

Chip chip_of(const Device& device) {
  Chip chip;
  chip.major = device.major;
  chip.minor = device.minor;
  chip.shared_bytes = device.shared_bytes;
  chip.multiprocessors = device.multiprocessors;
  chip.wgmma = device.major == 9;
  if (const char* asked = std::getenv("UPWEAVE_CUDA_MMA"); asked && std::string_view(asked) == "sync")
    chip.wgmma = false;
  return chip;
}

class CudaProgram final : public Program {
 public:
  CudaProgram(const FusedPlan& plan, const Options& options)
      : device_(current_device()), context_(current_context()) {
    const Chip chip = chip_of(device_);
    Lowered lowered = lower(plan, options, chip);
    const Compiled compiled = compile(lowered.source, chip.arch());
    const Driver& d = driver();
    check(d.module_load(&module_, compiled.cubin.data()), "cuModuleLoadData");
    copies_ = std::move(lowered.copies);
    packed_bytes_ = static_cast<size_t>(lowered.packed_bytes);
    workspace_bytes_ = static_cast<size_t>(lowered.workspace_bytes);
    notes_ = std::move(lowered.notes);
    notes_.insert(notes_.begin(),
                  fmt::format("{} (sm_{}{}), kernels for {}, {}", device_.name, device_.major, device_.minor,
                              chip.arch(), compiled.cached ? "from the cache" : "compiled now"));
    try {
      pack_ = resolve(lowered.pack);
      run_ = resolve(lowered.run);
    } catch (...) {
      d.module_unload(module_);
      throw;
    }
  }
  ~CudaProgram() override { driver().module_unload(module_); }

  size_t packed_bytes() const override { return packed_bytes_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::vector<std::string> describe() const override { return notes_; }

  void pack(const std::vector<const void*>& parameters, void* packed, void* stream) const override {
    enter_context(context_);
    need_device(packed, "the packed weights");
    for (const Lowered::Copy& copy : copies_) {
      // The driver tells host from device memory by the address.
      check(driver().copy_async(address(packed) + static_cast<DevicePtr>(copy.offset),
                                address(parameters[copy.parameter]), static_cast<size_t>(copy.bytes), stream),
            "copying a parameter");
    }
    launch(pack_, nullptr, nullptr, nullptr, packed, stream);
  }

  void run(const void* packed, const void* input, void* output, void* workspace,
           void* stream) const override {
    enter_context(context_);
    need_device(packed, "the packed weights");
    need_device(input, "input");
    need_device(output, "output");
    if (workspace_bytes_) need_device(workspace, "the workspace");
    launch(run_, input, output, workspace, const_cast<void*>(packed), stream);
  }

  void* allocate(size_t bytes) const override {
    DevicePtr p = 0;
    enter_context(context_);
    if (driver().alloc(&p, bytes ? bytes : 256) != 0) throw std::bad_alloc();
    return reinterpret_cast<void*>(p);
  }
  void release(void* p) const override { driver().free(address(p)); }

 private:
  struct Step {
    Function function;
    Launch launch;
  };

  static DevicePtr address(const void* p) { return reinterpret_cast<DevicePtr>(p); }

  static void need_device(const void* p, const char* what) {
    if (!is_device_pointer(p))
      throw invalid("{} is at {}, which is not in the current GPU's memory", what, p);
  }

  std::vector<Step> resolve(const std::vector<Launch>& launches) {
    const Driver& d = driver();
    std::vector<Step> steps;
    for (const Launch& launch : launches) {
      Step step{nullptr, launch};
      check(d.module_function(&step.function, module_, launch.kernel.c_str()), launch.kernel.c_str());
      if (launch.shared > 48 << 10) {
        check(d.function_set(step.function, kMaxDynamicShared, static_cast<int>(launch.shared)),
              "raising a kernel's shared memory");
      }
      int registers = 0, local = 0;
      d.function_get(&registers, kRegisters, step.function);
      d.function_get(&local, kLocalBytes, step.function);
      notes_.push_back(fmt::format("{}: {}x{} blocks of {} threads, {} registers, {} KB of shared memory{}",
                                   launch.kernel, launch.grid[0], launch.grid[1], launch.block, registers,
                                   launch.shared >> 10,
                                   local ? fmt::format(", {} bytes a thread in memory", local) : ""));
      steps.push_back(std::move(step));
    }
    return steps;
  }

  void launch(const std::vector<Step>& steps, const void* input, void* output, void* workspace, void* packed,
              void* stream) const {
    struct Args {
      const void* input;
      void *output, *workspace, *packed;
    } args{input, output, workspace, packed};
    void* parameters[] = {&args};
    for (const Step& step : steps) {
      check(driver().launch(step.function, step.launch.grid[0], step.launch.grid[1], 1, step.launch.block, 1,
                            1, step.launch.shared, stream, parameters, nullptr),
            step.launch.kernel.c_str());
    }
  }

  Device device_;
  void* context_;
  Module module_ = nullptr;
  std::vector<Lowered::Copy> copies_;
  std::vector<Step> pack_, run_;
  std::vector<std::string> notes_;
  size_t packed_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Program> compile_cuda(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (options.dtype == Dtype::kF64)
    throw fail(Status::kUnsupported, "the CUDA engine has no f64; the reference engine does");
  return std::make_unique<CudaProgram>(*plan, options);
}

}  // namespace upweave
