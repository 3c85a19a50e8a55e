#pragma once
// A GPU in tests: whether there is one, and memory on it that starts poisoned.
#include <dlfcn.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/nvrtc.h"

namespace upweave::testing {

// Why nothing can run here; empty where it can.
inline std::string why_no_gpu() {
  try {
    cuda::current_device();
  } catch (const Error& error) {
    return error.what();
  }
  std::string why;
  cuda::nvrtc_version(&why);
  return why;
}

class DeviceBlock {
 public:
  explicit DeviceBlock(size_t bytes) : bytes_(bytes) {
    cuda::check(cuda::driver().alloc(&p_, bytes ? bytes : 1), "cuMemAlloc");
    poison();
  }
  DeviceBlock(const void* from, size_t bytes) : DeviceBlock(bytes) { write(from, bytes); }
  ~DeviceBlock() { cuda::driver().free(p_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  void poison() {
    const std::vector<char> ones(bytes_, static_cast<char>(0xff));
    write(ones.data(), bytes_);
  }
  void write(const void* from, size_t bytes) {
    cuda::check(cuda::driver().copy_async(p_, reinterpret_cast<cuda::DevicePtr>(from), bytes, nullptr),
                "copy");
    wait();
  }
  void read(void* to) const {
    wait();
    cuda::check(cuda::driver().copy_async(reinterpret_cast<cuda::DevicePtr>(to), p_, bytes_, nullptr),
                "copy");
    wait();
  }
  std::vector<char> read() const {
    std::vector<char> to(bytes_);
    read(to.data());
    return to;
  }
  void* get() const { return reinterpret_cast<void*>(p_); }
  size_t bytes() const { return bytes_; }

 private:
  static void wait() { cuda::check(cuda::driver().synchronize(), "cuCtxSynchronize"); }
  size_t bytes_;
  cuda::DevicePtr p_ = 0;
};

// Calls a function of the driver that the engine has no use for.
template <class... Args>
void driver_call(const char* name, Args... args) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* function = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  if (!function) throw fail(Status::kUnsupported, "libcuda.so.1 has no {}", name);
  cuda::check(function(args...), name);
}

}  // namespace upweave::testing
