#include "engine/cuda/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace upweave::cuda {
namespace {

// Values of the driver's enumerations.
constexpr int kInvalidContext = 201, kPoolReleaseThreshold = 4;
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedOptIn = 97, kClock = 13,
              kMemoryClock = 36, kBusWidth = 37;
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
  find(lib, "cuDeviceGetCount", d.device_count);
  find(lib, "cuDevicePrimaryCtxRetain", d.primary_retain);
  find(lib, "cuDevicePrimaryCtxGetState", d.primary_state);
  find(lib, "cuCtxSetCurrent", d.context_set);
  find(lib, "cuModuleLoadData", d.module_load);
  find(lib, "cuModuleUnload", d.module_unload);
  find(lib, "cuModuleGetFunction", d.module_function);
  find(lib, "cuFuncSetAttribute", d.function_set);
  find(lib, "cuLaunchKernel", d.launch);
  find(lib, "cuMemcpyAsync", d.copy_async);
  find(lib, "cuMemAlloc_v2", d.alloc);
  find(lib, "cuMemFree_v2", d.free);
  find(lib, "cuMemPoolCreate", d.pool_create);
  find(lib, "cuMemPoolSetAttribute", d.pool_set);
  find(lib, "cuMemAllocFromPoolAsync", d.alloc_async);
  find(lib, "cuMemFreeAsync", d.free_async);
  find(lib, "cuCtxSynchronize", d.synchronize);
  find(lib, "cuPointerGetAttribute", d.pointer_attribute);
  find(lib, "cuGetErrorString", d.error_text);
  int (*version)(int*) = nullptr;
  int number = 0;
  find(lib, "cuDriverGetVersion", version);
  if (version(&number) != 0) number = 0;
  if (number >= 12000) find(lib, "cuTensorMapEncodeTiled", d.tensor_map);
  if (number >= 12030) find(lib, "cuLaunchKernelEx", d.launch_early);  // in graphs too
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

void* primary_context(int ordinal) {
  void* context = nullptr;
  int device = 0, devices = 0;
  check(driver().device_count(&devices), "cuDeviceGetCount");
  if (ordinal >= devices) throw invalid("device is {}; this machine has {} GPU(s)", ordinal, devices);
  check(driver().device_get(&device, ordinal), "cuDeviceGet");
  check(driver().primary_retain(&context, device), "cuDevicePrimaryCtxRetain");  // for the process's life
  return context;
}

void* current_context() {
  void* context = nullptr;
  check(driver().context_current(&context), "cuCtxGetCurrent");
  return context;
}

Device current_device() {
  const Driver& d = driver();
  if (!current_context()) check(d.context_set(primary_context(0)), "cuCtxSetCurrent");
  Device device;
  check(d.context_device(&device.ordinal), "cuCtxGetDevice");
  char name[128] = {};
  check(d.device_name(name, sizeof name - 1, device.ordinal), "cuDeviceGetName");
  device.name = name;
  device.major = attribute(device.ordinal, kMajor);
  device.minor = attribute(device.ordinal, kMinor);
  device.multiprocessors = attribute(device.ordinal, kMultiprocessors);
  device.shared_bytes = attribute(device.ordinal, kSharedOptIn);
  device.clock = attribute(device.ordinal, kClock) * 1e3;  // kHz
  device.memory_rate =
      attribute(device.ordinal, kMemoryClock) * 2e3 * attribute(device.ordinal, kBusWidth) / 8;
  return device;
}

ContextScope::ContextScope(void* context) noexcept {
  if (driver().context_current(&before_) != 0 || before_ == context) return;
  changed_ = driver().context_set(context) == 0;
}

ContextScope::~ContextScope() {
  if (changed_) driver().context_set(before_);
}

void* memory_pool(int ordinal) {
  struct Properties {  // CUmemPoolProps
    int type = 1, handles = 0;
    int location = 1, id;
    void* security = nullptr;
    size_t most = 0;
    unsigned char reserved[56] = {};
  } properties{.id = ordinal};
  static std::mutex mutex;
  static auto& pools = *new std::map<int, void*>();  // a device may be gone before static objects are
  const std::lock_guard lock(mutex);
  void*& pool = pools[ordinal];
  if (!pool) {
    check(driver().pool_create(&pool, &properties), "cuMemPoolCreate");
    uint64_t kept = uint64_t{256} << 20;  // the scratch of the documents' five; more goes back to the system
    check(driver().pool_set(pool, kPoolReleaseThreshold, &kept), "cuMemPoolSetAttribute");
  }
  return pool;
}

int device_of(const void* p, int managed) {
  const Driver& d = driver();
  const auto address = reinterpret_cast<DevicePtr>(p);
  unsigned type = 0, moves = 0;
  int owner = -1;
  const int code = d.pointer_attribute(&type, kPointerMemoryType, address);
  if (code == kInvalidContext) {  // a thread that has used no GPU yet: ask in a context of another
    int devices = 0, device = 0, active = 0;
    unsigned flags = 0;
    if (current_context() || d.device_count(&devices) != 0) return -1;
    for (int i = 0; i < devices; ++i) {
      if (d.device_get(&device, i) != 0 || d.primary_state(device, &flags, &active) != 0 || !active) continue;
      const ContextScope scope(primary_context(i));
      return device_of(p, managed);
    }
  }
  if (code != 0) return -1;
  if (d.pointer_attribute(&moves, kPointerIsManaged, address) == 0 && moves) return managed;
  if (type != kMemoryTypeDevice || d.pointer_attribute(&owner, kPointerDevice, address) != 0) return -1;
  return owner;
}

}  // namespace upweave::cuda
