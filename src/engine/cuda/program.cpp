#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include "base/watch.h"
#include "engine/cuda/describe.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/nvrtc.h"
#include "engine/engine.h"

// The CUDA engine's program: kernels compiled for this plan and this device, launched in order on the
// caller's stream.
namespace upweave {
namespace {

using namespace cuda;

constexpr int kOutOfMemory = 2;
constexpr int kProgrammaticSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kMaxDynamicShared = 8;           // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

class CudaProgram final : public Program {
 public:
  CudaProgram(const FusedPlan& plan, const Options& options)
      : device_(current_device()), context_(current_context()) {
    const Chip chip = chip_of(device_);
    Lowered lowered = lower(plan, options, chip);
    const Compiled compiled = compile(lowered.source, chip.arch());
    const Driver& d = driver();
    early_ = chip.major >= 9 && d.launch_early;
    check(d.module_load(&module_, compiled.cubin.data()), "cuModuleLoadData");
    inputs_ = std::move(lowered.inputs);
    copies_ = std::move(lowered.copies);
    extra_ = std::move(lowered.extra);
    packed_bytes_ = static_cast<size_t>(lowered.packed_bytes);
    workspace_bytes_ = static_cast<size_t>(lowered.workspace_bytes);
    output_alignment_ = static_cast<size_t>(lowered.output_alignment);
    const Rates rates = rates_of(device_, chip);
    predicted_ = predict(lowered, rates);
    notes_ = cuda::describe(plan, options, lowered, compiled.cubin, rates);
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
  ~CudaProgram() override {
    const ContextScope scope(context_);
    driver().module_unload(module_);
  }

  size_t packed_bytes() const override { return packed_bytes_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::vector<std::string> describe() const override { return notes_; }
  double predicted_seconds() const override { return predicted_; }

  void pack(const std::vector<const void*>& parameters, void* packed, void* stream) const override {
    const ContextScope scope(context_);
    for (const Lowered::Copy& copy : copies_) {
      // The driver tells host from device memory by the address.
      check(driver().copy_async(address(packed) + static_cast<DevicePtr>(copy.offset),
                                address(parameters[copy.parameter]), static_cast<size_t>(copy.bytes), stream),
            "copying a parameter");
    }
    const std::vector<const void*> none(inputs_.size());
    launch(pack_, none.data(), nullptr, nullptr, packed, stream);
  }

  void run(const void* packed, const void* const* inputs, void* const* outputs, void* workspace,
           void* stream) const override {
    const ContextScope scope(context_);
    void* const output = outputs[0];
    for (size_t i = 0; i < inputs_.size(); ++i) check_memory(inputs[i], inputs_[i].c_str());
    check_memory(output, "output");
    for (size_t k = 0; k < extra_.size(); ++k) check_memory(outputs[k + 1], "an extra output");
    if (address(output) % output_alignment_ != 0)
      throw invalid("output is at {}, which is no multiple of {} bytes", output, output_alignment_);
    launch(run_, inputs, output, workspace, const_cast<void*>(packed), stream);
    for (size_t k = 0; k < extra_.size(); ++k) {
      check(driver().copy_async(address(outputs[k + 1]),
                                address(workspace) + static_cast<DevicePtr>(extra_[k].offset),
                                static_cast<size_t>(extra_[k].bytes), stream),
            "copying an extra output");
    }
  }

  void check_memory(const void* p, const char* what) const override {
    if (device_of(p, device_.ordinal) != device_.ordinal) {
      throw invalid("{} is at {}, which is not in the memory of the plan's GPU ({}, device {})", what, p,
                    device_.name, device_.ordinal);
    }
  }
  void* allocate(size_t bytes) const override {
    const ContextScope scope(context_);
    return taken(bytes, [](DevicePtr* p, size_t n) { return driver().alloc(p, n); });
  }
  void release(void* p) const override {  // waits for work that may use it
    const ContextScope scope(context_);
    driver().free(address(p));
  }
  void* allocate_in(size_t bytes, void* stream) const override {
    const ContextScope scope(context_);
    void* pool = memory_pool(device_.ordinal);
    return taken(bytes, [&](DevicePtr* p, size_t n) { return driver().alloc_async(p, n, pool, stream); });
  }
  void release_in(void* p, void* stream) const override {
    const ContextScope scope(context_);
    driver().free_async(address(p), stream);
  }
  // The driver tells host from device memory by the address. A copy from the host's ordinary memory has read
  // it when it returns, and a copy to it has written it.
  void copy(void* to, const void* from, size_t bytes) const override {
    const ContextScope scope(context_);
    check(driver().copy_async(address(to), address(from), bytes, nullptr), "copying to or from the GPU");
  }

 private:
  struct Step {
    Function function;
    Launch launch;
  };

  struct alignas(64) TensorMap {
    unsigned char opaque[128] = {};
  };
  static TensorMap map_of(const TensorView& view, void* base) {
    constexpr int kHalf = 6, kFloat = 7, kPromote256 = 3;  // the driver's enumerations
    const unsigned each[] = {1, 1, 1, 1, 1};
    TensorMap map;
    if (!view.used) return map;
    check(driver().tensor_map(&map, view.floats ? kFloat : kHalf, static_cast<unsigned>(view.extents.size()),
                              static_cast<char*>(base) + view.offset, view.extents.data(),
                              view.strides.data(), view.box.data(), each, 0,
                              view.swizzle == 128 ? 3 : view.swizzle / 32, view.output ? 0 : kPromote256, 0),
          "cuTensorMapEncodeTiled");
    return map;
  }

  static DevicePtr address(const void* p) { return reinterpret_cast<DevicePtr>(p); }

  template <class F>
  static void* taken(size_t bytes, F&& allocate) {
    DevicePtr p = 0;
    const int code = allocate(&p, bytes ? bytes : 256);
    if (code == kOutOfMemory) throw std::bad_alloc();
    check(code, "allocating on the GPU");
    return reinterpret_cast<void*>(p);
  }

  std::vector<Step> resolve(const std::vector<Launch>& launches) {
    const Driver& d = driver();
    std::vector<Step> steps;
    for (const Launch& launch : launches) {
      Step step{nullptr, launch};
      check(d.module_function(&step.function, module_, launch.kernel.c_str()), launch.kernel.c_str());
      if (launch.shared > 0) {  // beside a kernel's own, even little may pass what all kernels may have
        check(d.function_set(step.function, kMaxDynamicShared, static_cast<int>(launch.shared)),
              "raising a kernel's shared memory");
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  void launch(const std::vector<Step>& steps, const void* const* inputs, void* output, void* workspace,
              void* packed, void* stream) const {
    std::vector<const void*> args = {inputs[0], output, workspace, packed};  // Args of the kernels' prelude
    args.insert(args.end(), inputs + 1, inputs + inputs_.size());
    for (const Step& step : steps) {
      std::vector<TensorMap> maps;
      for (const TensorView& view : step.launch.views)
        maps.push_back(map_of(view, view.output ? output : workspace));
      std::vector<void*> parameters{args.data()};
      if (!maps.empty()) parameters.push_back(maps.data());
      if (!step.launch.numbers.empty()) parameters.push_back(const_cast<int*>(step.launch.numbers.data()));
      // Each kernel waits by itself for the one before it (await_previous); the first for whatever the stream
      // holds.
      const bool early = early_ && &step != steps.data();
      check(early ? launch_early(step, stream, parameters.data())
                  : driver().launch(step.function, step.launch.grid[0], step.launch.grid[1], 1,
                                    step.launch.block, 1, 1, step.launch.shared, stream, parameters.data(),
                                    nullptr),
            step.launch.kernel.c_str());
      throw_if_interrupted();
    }
  }
  static int launch_early(const Step& step, void* stream, void** parameters) {
    LaunchAttribute allow{.id = kProgrammaticSerialization, .value = 1};
    const LaunchConfig config{{step.launch.grid[0], step.launch.grid[1], 1},
                              {step.launch.block, 1, 1},
                              step.launch.shared,
                              stream,
                              &allow,
                              1};
    return driver().launch_early(&config, step.function, parameters, nullptr);
  }

  Device device_;
  void* context_;
  Module module_ = nullptr;
  bool early_ = false;  // kernels are launched before the one ahead has ended
  std::vector<std::string> inputs_;
  std::vector<Lowered::Copy> copies_;
  std::vector<Lowered::Given> extra_;
  std::vector<Step> pack_, run_;
  std::vector<std::string> notes_;
  double predicted_ = 0;
  size_t packed_bytes_ = 0, workspace_bytes_ = 0, output_alignment_ = 1;
};

std::unique_ptr<Program> compile_program(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (options.dtype == Dtype::kF64)
    throw fail(Status::kUnsupported, "the CUDA engine has no f64; the reference engine does");
  std::optional<ContextScope> elsewhere;
  if (options.device >= 0) elsewhere.emplace(primary_context(options.device));
  return std::make_unique<CudaProgram>(*plan, options);
}

}  // namespace

// The tensor cores' peak over the memory's rate.
extern const EngineEntry cuda_engine = {.target = {.flops_per_byte = 60},
                                        .device = true,
                                        .compile = compile_program,
                                        .describe = describe_anywhere,
                                        .predict = predict_anywhere};

}  // namespace upweave
