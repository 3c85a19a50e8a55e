#include "engine/cuda/disk_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace upweave::cuda {
namespace {

constexpr off_t kMaxEntry = off_t{256} << 20;  // far beyond any kernel

// FNV-1a over 128 bits: enough that two sources never meet in one cache, and that damage shows.
std::string digest(std::string_view text) {
  unsigned __int128 h = (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
  const unsigned __int128 prime = (static_cast<unsigned __int128>(0x1000000) << 64) | 0x13b;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * prime;
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(h >> 64), static_cast<uint64_t>(h));
}

// Behind the content: whose it is, and what it was when it was written.
std::string seal(std::string_view key, std::string_view content) { return digest(key) + digest(content); }

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Only the user may look into the last folder, whatever the umask.
void make_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  ::mkdir(folder.c_str(), 0700);
}

}  // namespace

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

std::optional<std::string> read_cache(std::string_view key) {
  const std::string path = cache_path(key);
  if (path.empty()) return std::nullopt;
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct stat info;
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return std::nullopt;
  if (info.st_size > kMaxEntry) return std::nullopt;
  std::string content(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < content.size();) {
    const ssize_t n = ::read(file.fd, content.data() + at, content.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    at += static_cast<size_t>(n);
  }
  const size_t sealed = seal("", "").size();
  if (content.size() <= sealed) return std::nullopt;
  const std::string found = content.substr(content.size() - sealed);
  content.resize(content.size() - sealed);
  if (found != seal(key, content)) return std::nullopt;
  return content;
}

// Readers see a whole file or none: it gets its name only when it is complete.
void write_cache(std::string_view key, std::string_view content) {
  const std::string path = cache_path(key);
  if (path.empty()) return;
  make_folder(std::filesystem::path(path).parent_path());
  const std::string temporary =
      fmt::format("{}.{}.{}", path, ::getpid(), static_cast<const void*>(content.data()));
  bool whole = false;
  {
    const Descriptor file{
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
    if (file.fd < 0) return;
    whole = write_all(file.fd, content) && write_all(file.fd, seal(key, content));
  }
  if (!whole || ::rename(temporary.c_str(), path.c_str()) != 0) ::unlink(temporary.c_str());
}

}  // namespace upweave::cuda
