#include "api/device.h"

#include <dlfcn.h>

#include <algorithm>

#include "api/plan_impl.h"
#include "base/dtype.h"
#include "engine/cuda/driver.h"

namespace upweave {

int gpu_of(const void* p) {
  void* library = p ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (!library) return -1;
  dlclose(library);
  try {
    return cuda::device_of(p, 0);
  } catch (const Error&) {  // a driver without a GPU
    return -1;
  }
}

struct GpuScope::Inner {
  cuda::ContextScope scope;
};

GpuScope::GpuScope(int gpu) {
  if (gpu < 0) return;
  int current = -1;  // a context of the caller's own making on that GPU stays
  if (cuda::current_context() && cuda::driver().context_device(&current) == 0 && current == gpu) return;
  inner_.reset(new Inner{cuda::ContextScope(cuda::primary_context(gpu))});
}
GpuScope::~GpuScope() = default;

void run_from_host(const Plan& plan, const Tensors& tensors, void* output, const Outputs& extra) {
  const PlanImpl& impl = plan.impl();
  const auto given = [&](const std::string& input) { return tensors.contains(input); };
  if (!impl.on_device() || impl.empty() || !std::ranges::all_of(plan.inputs(), given)) {
    return plan.run(tensors, output, extra);
  }
  const auto bytes = [&](const Shape& shape) {
    return static_cast<size_t>(count(shape) * size_of(impl.options().dtype));
  };
  const size_t output_bytes = bytes(impl.output_shape());
  DeviceBuffer result(impl.program(), output_bytes);
  std::map<std::string, DeviceBuffer> inputs;
  Tensors there = tensors;  // parameters are packed from wherever they are
  for (const std::string& name : plan.inputs()) {
    const size_t n = bytes(impl.shapes().at(name));
    DeviceBuffer& buffer = inputs.try_emplace(name, impl.program(), n).first->second;
    buffer.upload(tensors.at(name), n);
    there[name] = buffer.data();
  }
  std::map<std::string, DeviceBuffer> extra_buffers;
  Outputs extra_there;
  const auto extra_bytes = [](const OutputInfo& info) {
    return static_cast<size_t>(count(info.shape) * size_of(info.dtype));
  };
  for (const OutputInfo& info : plan.extra_outputs()) {
    extra_there[info.name] =
        extra_buffers.try_emplace(info.name, impl.program(), extra_bytes(info)).first->second.data();
  }
  plan.run(there, result.data(), extra_there);
  result.download(output, output_bytes);
  for (const OutputInfo& info : plan.extra_outputs())
    extra_buffers.at(info.name).download(extra.at(info.name), extra_bytes(info));
}

}  // namespace upweave
