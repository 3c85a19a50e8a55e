#pragma once
// What a compiled image says of its kernels, read without a driver.
#include <map>
#include <string>

namespace upweave::cuda {

struct KernelFacts {
  int registers = 0;
  int stack = 0;         // bytes of local memory a thread
  int instructions = 0;  // in all, and of those:
  int wgmma = 0;         // Hopper's matrix products
  int mma = 0;           // mma.sync
  int local = 0;         // loads and stores of local memory
};

// By kernel name. Empty if `cubin` is no image of the kind that is known here (64-bit ELF).
std::map<std::string, KernelFacts> inspect(const std::string& cubin);

}  // namespace upweave::cuda
