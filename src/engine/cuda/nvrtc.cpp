#include "engine/cuda/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/error.h"

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

// FNV-1a over 128 bits: enough that two sources never meet in one cache.
std::string digest(std::string_view text) {
  unsigned __int128 h = (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
  const unsigned __int128 prime = (static_cast<unsigned __int128>(0x1000000) << 64) | 0x13b;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * prime;
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(h >> 64), static_cast<uint64_t>(h));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Readers see a whole file or none: it gets its name only when it is complete. A cache that cannot be written
// costs time, never correctness.
void write_file(const std::string& path, const std::string& content) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string temporary = fmt::format("{}.{}.{}", path, getpid(), static_cast<const void*>(&content));
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!file.good()) {
      file.close();
      std::filesystem::remove(temporary, ignored);
      return;
    }
  }
  std::filesystem::rename(temporary, path, ignored);
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

std::string cache_path(std::string_view key) {
  std::string root;
  if (const char* given = std::getenv("UPWEAVE_CACHE"); given && *given) {
    root = given;
  } else if (const char* home = std::getenv("HOME"); home && *home) {
    root = std::string(home) + "/.cache/upweave";
  } else {
    return "";
  }
  return root + "/" + digest(key) + ".cubin";
}

Compiled compile(std::string_view source, std::string_view arch, bool use_cache) {
  const Nvrtc& n = nvrtc();
  const std::string target = fmt::format("--gpu-architecture={}", arch);
  const std::vector<const char*> options = {target.c_str(), "--std=c++17", "--extra-device-vectorization",
                                            "--ptxas-options=-v", "--diag-suppress=177,550"};
  std::string key = fmt::format("nvrtc {}.{}\n", n.major, n.minor);
  for (const char* option : options) key += std::string(option) + "\n";
  key += source;
  const std::string path = use_cache ? cache_path(key) : "";
  if (!path.empty()) {
    // A file that was cut short is no ELF image of a whole length; the key is stored behind the image as its
    // seal.
    std::string file = read_file(path);
    const std::string seal = digest(key);
    if (file.size() > seal.size() && file.compare(file.size() - seal.size(), seal.size(), seal) == 0) {
      file.resize(file.size() - seal.size());
      return {std::move(file), "", true};
    }
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
    throw fail(Status::kInternal, "NVRTC {}.{} could not compile a kernel for {}: {}", n.major, n.minor, arch,
               result.log);
  }
  if (!path.empty()) write_file(path, result.cubin + digest(key));
  return result;
}

}  // namespace upweave::cuda
