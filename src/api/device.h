#pragma once
// What the entrances know of GPUs: whose memory a pointer is in, and how to get data there and back.
#include "engine/engine.h"

namespace upweave {

// The GPU whose memory `p` is in, or -1. Only looks if the process has opened CUDA: whoever has such a
// pointer has.
int gpu_of(const void* p);

// Makes that GPU the calling thread's while it lives; -1 changes nothing.
class GpuScope {
 public:
  explicit GpuScope(int gpu);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  struct Inner;
  std::unique_ptr<Inner> inner_;
};

// Memory on the device of a program whose engine has one.
class DeviceBuffer {
 public:
  DeviceBuffer(const Program& program, size_t bytes) : program_(program), data_(program.allocate(bytes)) {}
  ~DeviceBuffer() { program_.release(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }
  void upload(const void* from, size_t bytes) { program_.copy(data_, from, bytes); }
  // Returns when all work before it is done, too.
  void download(void* to, size_t bytes) const { program_.copy(to, data_, bytes); }

 private:
  const Program& program_;
  void* data_;
};

// Plan::run for tensors on the host, whatever the engine.
void run_from_host(const Plan& plan, const Tensors& tensors, void* output, const Outputs& extra = {});

}  // namespace upweave
