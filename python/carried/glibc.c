// Functions that the C++ runtime and the library call and that glibc has had since its versions 2.32 to 2.36
// only, in terms of what it had before: a module with these inside runs on glibc 2.28.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)  // the kernel's struct stat is the C library's
int fstatat(int folder, const char* path, struct stat* status, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}
int stat(const char* path, struct stat* status) { return fstatat(AT_FDCWD, path, status, 0); }
int lstat(const char* path, struct stat* status) {
  return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int fstat(int file, struct stat* status) { return (int)syscall(SYS_fstat, file, status); }

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout has two names");
int fstatat64(int folder, const char* path, struct stat64* status, int flags) {
  return fstatat(folder, path, (struct stat*)status, flags);
}
int stat64(const char* path, struct stat64* status) { return stat(path, (struct stat*)status); }
int lstat64(const char* path, struct stat64* status) { return lstat(path, (struct stat*)status); }
int fstat64(int file, struct stat64* status) { return fstat(file, (struct stat*)status); }
#endif

// "There may be other threads": atomic counters stay atomic.
char __libc_single_threaded = 0;

// std::random_device's source.
uint32_t arc4random(void) {
  uint32_t bits;
  if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) abort();
  return bits;
}
