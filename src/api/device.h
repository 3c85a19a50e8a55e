#pragma once
// What the entrances know of GPUs: whose memory a pointer is in, and how to get data there and back.
#include "engine/engine.h"

namespace upweave {

// True if `p` is in a GPU's memory. Only looks if the process has opened CUDA: whoever has such a pointer
// has.
bool on_device(const void* p);

// Memory on the device of a program of the CUDA engine.
class DeviceBuffer {
 public:
  DeviceBuffer(const Program& program, size_t bytes) : program_(program), data_(program.allocate(bytes)) {}
  ~DeviceBuffer() { program_.release(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }
  void upload(const void* from, size_t bytes);
  void download(void* to, size_t bytes) const;  // returns when all work before it is done, too

 private:
  const Program& program_;
  void* data_;
};

// Plan::run for tensors on the host, whatever the engine.
void run_from_host(const Plan& plan, const Tensors& tensors, void* output);

}  // namespace upweave
