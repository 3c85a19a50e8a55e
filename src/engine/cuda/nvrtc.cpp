#include "engine/cuda/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "engine/cuda/disk_cache.h"

namespace upweave::cuda {
namespace {

using Handle = void*;

struct Nvrtc {
  int (*version)(int*, int*);
  int (*create)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Handle*);
  int (*compile)(Handle, int, const char* const*);
  int (*log_size)(Handle, size_t*);
  int (*log)(Handle, char*);
  int (*cubin_size)(Handle, size_t*);
  int (*cubin)(Handle, char*);
  int major = 0, minor = 0;
};

void add_matches(std::vector<std::string>& out, const std::string& pattern) {
  glob_t g{};
  if (glob(pattern.c_str(), 0, nullptr, &g) == 0) {
    for (size_t i = g.gl_pathc; i-- > 0;) out.emplace_back(g.gl_pathv[i]);  // newest version first
  }
  globfree(&g);
}

// Candidates in the order in which they are tried.
std::vector<std::string> candidates() {
  std::vector<std::string> names;
  if (const char* given = std::getenv("UPWEAVE_NVRTC"); given && *given) {
    if (std::filesystem::is_directory(given)) {
      add_matches(names, std::string(given) + "/libnvrtc.so*");
      add_matches(names, std::string(given) + "/nvidia/*/lib/libnvrtc.so*");
    } else {
      names.emplace_back(given);
    }
  }
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) names.emplace_back(name);
  for (const char* root :
       {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/opt/cuda/lib64"}) {
    add_matches(names, std::string(root) + "/libnvrtc.so*");
  }
  // pip install nvidia-cuda-nvrtc: in the active environment, or beside the programs of the PATH (X/bin).
  std::vector<std::string> prefixes;
  if (const char* env = std::getenv("VIRTUAL_ENV"); env && *env) prefixes.emplace_back(env);
  if (const char* path = std::getenv("PATH")) {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (folder.ends_with("/bin")) prefixes.push_back(folder.substr(0, folder.size() - 4));
    }
  }
  for (const std::string& prefix : prefixes) {
    for (const char* site : {"site-packages", "dist-packages"}) {
      add_matches(names, prefix + "/lib/python3*/" + site + "/nvidia/cu13/lib/libnvrtc.so.*");
      add_matches(names, prefix + "/lib/python3*/" + site + "/nvidia/cuda_nvrtc/lib/libnvrtc.so.*");
    }
  }
  return names;
}

template <class F>
bool find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

Nvrtc open() {
  for (const std::string& name : candidates()) {
    // The compiler opens its builtins by name alone, so a copy in a folder of its own needs them open
    // already.
    if (const size_t slash = name.rfind('/'); slash != std::string::npos) {
      std::vector<std::string> builtins;
      add_matches(builtins, name.substr(0, slash) + "/libnvrtc-builtins.so*");
      for (const std::string& file : builtins) dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
    void* lib = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!lib) continue;
    Nvrtc n{};
    if (find(lib, "nvrtcVersion", n.version) && find(lib, "nvrtcCreateProgram", n.create) &&
        find(lib, "nvrtcDestroyProgram", n.destroy) && find(lib, "nvrtcCompileProgram", n.compile) &&
        find(lib, "nvrtcGetProgramLogSize", n.log_size) && find(lib, "nvrtcGetProgramLog", n.log) &&
        find(lib, "nvrtcGetCUBINSize", n.cubin_size) && find(lib, "nvrtcGetCUBIN", n.cubin) &&
        n.version(&n.major, &n.minor) == 0) {
      return n;
    }
    dlclose(lib);
  }
  throw fail(Status::kUnsupported,
             "the CUDA engine compiles its kernels with NVRTC, and libnvrtc.so cannot be opened: install it "
             "(pip install nvidia-cuda-nvrtc) and name its file or folder in UPWEAVE_NVRTC");
}

const Nvrtc& nvrtc() {
  static const Nvrtc n = open();
  return n;
}

}  // namespace

std::string nvrtc_version(std::string* why) {
  try {
    return fmt::format("{}.{}", nvrtc().major, nvrtc().minor);
  } catch (const Error& error) {
    if (why) *why = error.what();
    return "";
  }
}

Compiled compile(std::string_view source, std::string_view arch, bool use_cache) {
  const Nvrtc& n = nvrtc();
  const std::string target = fmt::format("--gpu-architecture={}", arch);
  const std::vector<const char*> options = {target.c_str(), "--std=c++17", "--extra-device-vectorization",
                                            "--ptxas-options=-v", "--diag-suppress=177,550"};
  std::string key = fmt::format("nvrtc {}.{}\n", n.major, n.minor);
  for (const char* option : options) key += std::string(option) + "\n";
  key += source;
  if (use_cache) {
    if (std::optional<std::string> kept = read_cache(key)) return {std::move(*kept), "", true};
  }
  Handle program = nullptr;
  if (n.create(&program, std::string(source).c_str(), "upweave.cu", 0, nullptr, nullptr) != 0) {
    throw fail(Status::kInternal, "NVRTC {}.{} refused to start", n.major, n.minor);
  }
  Compiled result;
  const int code = n.compile(program, static_cast<int>(options.size()), options.data());
  size_t size = 0;
  if (n.log_size(program, &size) == 0 && size > 1) {
    result.log.resize(size);
    n.log(program, result.log.data());
    result.log.resize(size - 1);
  }
  if (code == 0 && n.cubin_size(program, &size) == 0) {
    result.cubin.resize(size);
    n.cubin(program, result.cubin.data());
  }
  n.destroy(&program);
  if (code != 0 || result.cubin.empty()) {
    throw Error(Status::kInternal, fmt::format("NVRTC {}.{} could not compile a kernel for {}: {}", n.major,
                                               n.minor, arch, result.log));
  }
  if (use_cache) write_cache(key, result.cubin);
  return result;
}

}  // namespace upweave::cuda
