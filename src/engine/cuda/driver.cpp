#include "engine/cuda/driver.h"

#include <dlfcn.h>

#include "base/error.h"

namespace upweave::cuda {
namespace {

// Values of the driver's enumerations.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedOptIn = 97;
constexpr int kPointerMemoryType = 2, kPointerIsManaged = 8, kPointerDevice = 9, kMemoryTypeDevice = 2;

template <class F>
void find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  if (!f)
    throw fail(Status::kUnsupported,
               "the CUDA engine needs {} in libcuda.so.1, which has none: the driver is too old", name);
}

Driver open() {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    throw fail(Status::kUnsupported,
               "the CUDA engine needs NVIDIA's driver, and libcuda.so.1 cannot be opened: {}", dlerror());
  }
  Driver d{};
  find(lib, "cuInit", d.init);
  find(lib, "cuDeviceGet", d.device_get);
  find(lib, "cuDeviceGetAttribute", d.device_attribute);
  find(lib, "cuDeviceGetName", d.device_name);
  find(lib, "cuCtxGetCurrent", d.context_current);
  find(lib, "cuCtxGetDevice", d.context_device);
  find(lib, "cuDevicePrimaryCtxRetain", d.primary_retain);
  find(lib, "cuCtxSetCurrent", d.context_set);
  find(lib, "cuModuleLoadData", d.module_load);
  find(lib, "cuModuleUnload", d.module_unload);
  find(lib, "cuModuleGetFunction", d.module_function);
  find(lib, "cuFuncSetAttribute", d.function_set);
  find(lib, "cuFuncGetAttribute", d.function_get);
  find(lib, "cuLaunchKernel", d.launch);
  find(lib, "cuMemcpyAsync", d.copy_async);
  find(lib, "cuMemAlloc_v2", d.alloc);
  find(lib, "cuMemFree_v2", d.free);
  find(lib, "cuCtxSynchronize", d.synchronize);
  find(lib, "cuPointerGetAttribute", d.pointer_attribute);
  find(lib, "cuGetErrorString", d.error_text);
  if (const int code = d.init(0)) {
    const char* text = nullptr;
    d.error_text(code, &text);
    throw fail(Status::kUnsupported, "the CUDA engine needs a GPU, and the driver finds none: {}",
               text ? text : "unknown");
  }
  return d;
}

int attribute(int device, int which) {
  int value = 0;
  check(driver().device_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

const Driver& driver() {
  static const Driver d = open();  // a failed opening is tried again by the next call
  return d;
}

void check(int code, const char* what) {
  if (code == 0) return;
  const char* text = nullptr;
  driver().error_text(code, &text);
  throw fail(Status::kDevice, "{} failed with CUDA error {}: {}", what, code, text ? text : "unknown");
}

Device current_device() {
  const Driver& d = driver();
  void* context = nullptr;
  check(d.context_current(&context), "cuCtxGetCurrent");
  Device device;
  if (!context) {
    int zero = 0;
    check(d.device_get(&zero, 0), "cuDeviceGet");
    check(d.primary_retain(&context, zero), "cuDevicePrimaryCtxRetain");
    check(d.context_set(context), "cuCtxSetCurrent");
  }
  check(d.context_device(&device.ordinal), "cuCtxGetDevice");
  char name[128] = {};
  check(d.device_name(name, sizeof name - 1, device.ordinal), "cuDeviceGetName");
  device.name = name;
  device.major = attribute(device.ordinal, kMajor);
  device.minor = attribute(device.ordinal, kMinor);
  device.multiprocessors = attribute(device.ordinal, kMultiprocessors);
  device.shared_bytes = attribute(device.ordinal, kSharedOptIn);
  return device;
}

void* current_context() {
  void* context = nullptr;
  check(driver().context_current(&context), "cuCtxGetCurrent");
  return context;
}

void enter_context(void* context) {
  if (!current_context()) check(driver().context_set(context), "cuCtxSetCurrent");
}

bool is_device_pointer(const void* p) {
  const Driver& d = driver();
  const auto address = reinterpret_cast<DevicePtr>(p);
  unsigned type = 0, managed = 0;
  int owner = -1, current = -1;
  if (d.pointer_attribute(&type, kPointerMemoryType, address) != 0) return false;
  if (d.pointer_attribute(&managed, kPointerIsManaged, address) == 0 && managed) return true;
  if (type != kMemoryTypeDevice) return false;
  return d.pointer_attribute(&owner, kPointerDevice, address) == 0 && d.context_device(&current) == 0 &&
         owner == current;
}

}  // namespace upweave::cuda
