#pragma once
// CUDA C++ to machine code at run time, through NVRTC and a cache on disk.
#include <string>
#include <string_view>

namespace upweave::cuda {

struct Compiled {
  std::string cubin;  // an ELF image
  std::string log;    // the compiler's words; empty when it came from the cache
  bool cached = false;
};

// Compiles `source` for `arch` ("sm_90a"). NVRTC is looked for at $UPWEAVE_NVRTC (a file or a folder), then
// under its usual names, then in the nvidia packages of the active Python environment and of those whose
// programs the PATH has. The cache is at $UPWEAVE_CACHE or ~/.cache/upweave; its key is the source, the
// options, the compiler's version and the architecture.
Compiled compile(std::string_view source, std::string_view arch, bool use_cache = true);

// "13.0", or "" when NVRTC cannot be opened; then `why` has the reason.
std::string nvrtc_version(std::string* why = nullptr);

}  // namespace upweave::cuda
