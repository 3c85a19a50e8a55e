#pragma once
// The part of the CUDA driver's interface that the engine uses, opened at run time: the library is built and
// runs where there is no CUDA, and says in one sentence what is missing when its engine is asked for.
#include <cstddef>
#include <cstdint>
#include <string>

namespace upweave::cuda {

using Stream = void*;
using Module = void*;
using Function = void*;
using DevicePtr = unsigned long long;

struct alignas(8) LaunchAttribute {  // CUlaunchAttribute
  int id, padding = 0;
  int value;
  char reserved[60] = {};
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned count;
};

struct Driver {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_attribute)(int*, int, int);
  int (*device_name)(char*, int, int);
  int (*context_current)(void**);
  int (*context_device)(int*);
  int (*device_count)(int*);
  int (*primary_retain)(void**, int);
  int (*primary_state)(int, unsigned*, int*);
  int (*context_set)(void*);
  int (*module_load)(Module*, const void*);
  int (*module_unload)(Module);
  int (*module_function)(Function*, Module, const char*);
  int (*function_set)(Function, int, int);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                void**, void**);
  // From CUDA 12 on, or null: makes a map of a tensor, by which TMA goes through it.
  int (*tensor_map)(void*, int, unsigned, void*, const uint64_t*, const uint64_t*, const unsigned*,
                    const unsigned*, int, int, int, int);
  // Beside `launch`, from CUDA 12.3 on, or null: a kernel that may be launched while the one before it still
  // works.
  int (*launch_early)(const LaunchConfig*, Function, void**, void**);
  int (*copy_async)(DevicePtr, DevicePtr, size_t, Stream);
  int (*alloc)(DevicePtr*, size_t);
  int (*free)(DevicePtr);
  int (*pool_create)(void**, const void*);
  int (*pool_set)(void*, int, void*);
  int (*alloc_async)(DevicePtr*, size_t, void*, Stream);
  int (*free_async)(DevicePtr, Stream);
  int (*synchronize)();
  int (*pointer_attribute)(void*, int, DevicePtr);
  int (*error_text)(int, const char**);
};

// The driver, or Error(kUnsupported) with the reason. Thread-safe; the first call opens it.
const Driver& driver();
// Throws Error(kDevice) that names `what` and the driver's own words unless `code` is 0.
void check(int code, const char* what);

struct Device {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int shared_bytes = 0;               // the most that one block can have
  double clock = 0, memory_rate = 0;  // a second: cycles of a multiprocessor, bytes by the memory's clock
};
// The device of the calling thread's context; without one, the primary context of device 0 becomes current.
Device current_device();
void* current_context();

// Makes a context current for the calling thread while it lives, unless it is already. Where that fails, what
// is called next says so.
class ContextScope {
 public:
  explicit ContextScope(void* context) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  void* before_ = nullptr;
  bool changed_ = false;
};
// The context that the process uses on a device if it says nothing else.
void* primary_context(int ordinal);

// Memory that is taken and given up in a stream's order: the device's, kept between runs up to a limit.
void* memory_pool(int ordinal);

// The device whose memory `p` lies in, or -1: the host's, or nobody's. Memory that the driver moves by itself
// is in every device's: then it is `managed`.
int device_of(const void* p, int managed);

}  // namespace upweave::cuda
