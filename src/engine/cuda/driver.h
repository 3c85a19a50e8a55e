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

struct Driver {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*device_attribute)(int*, int, int);
  int (*device_name)(char*, int, int);
  int (*context_current)(void**);
  int (*context_device)(int*);
  int (*primary_retain)(void**, int);
  int (*context_set)(void*);
  int (*module_load)(Module*, const void*);
  int (*module_unload)(Module);
  int (*module_function)(Function*, Module, const char*);
  int (*function_set)(Function, int, int);
  int (*function_get)(int*, int, Function);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                void**, void**);
  int (*copy_async)(DevicePtr, DevicePtr, size_t, Stream);
  int (*alloc)(DevicePtr*, size_t);
  int (*free)(DevicePtr);
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
  int shared_bytes = 0;  // the most that one block can have
};
// The device of the calling thread's context; without one, the primary context of device 0 becomes current.
Device current_device();
// The context that current_device() found or made, for threads that have none: makes it current there.
void enter_context(void* context);
void* current_context();
// True if `p` lies in memory of the current device (or managed memory).
bool is_device_pointer(const void* p);

}  // namespace upweave::cuda
