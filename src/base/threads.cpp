#include "base/threads.h"

#include <dirent.h>
#include <pthread.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <mutex>

namespace upweave {
namespace {

bool parent_had_threads = false;  // written while there is one thread, in the child
bool have_threads = false;        // written and read around one fork at a time

void before_fork() {
  have_threads = true;  // unless the kernel says otherwise: ".", ".." and one entry a thread
  if (DIR* tasks = opendir("/proc/self/task")) {
    int entries = 0;
    while (readdir(tasks)) ++entries;
    closedir(tasks);
    have_threads = entries != 3;
  }
}

void in_child() { parent_had_threads = parent_had_threads || have_threads; }

const int registered = pthread_atfork(before_fork, nullptr, in_child);

#ifdef _OPENMP

// The stack that OpenMP's threads ask for, "512" (KiB), "4M"; 0: the system's default.
size_t stack_bytes() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    const char* text = std::getenv(name);
    if (!text) continue;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(text, &end, 10);
    while (std::isspace(static_cast<unsigned char>(*end))) ++end;
    const int unit = std::toupper(static_cast<unsigned char>(*end));
    const int shift = unit == 'B' ? 0 : unit == 'M' ? 20 : unit == 'G' ? 30 : 10;
    if (number > 0 && number < (1ull << 32)) return static_cast<size_t>(number << shift);
  }
  return 0;
}

// How many of `wanted` more threads there can be, found by having them all at once, with some memory for each
// to begin with.
int threads_to_be_had(int wanted) {
  constexpr size_t kHeap = size_t{64} << 10, kSpare = size_t{1} << 20;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return 0;
  if (const size_t bytes = stack_bytes()) pthread_attr_setstacksize(&attributes, bytes);
  pthread_t threads[kMaxThreads];
  void* heaps[kMaxThreads];
  std::mutex gate;  // they wait at it
  const auto wait = [](void* g) -> void* {
    const std::lock_guard passing(*static_cast<std::mutex*>(g));
    return nullptr;
  };
  int had = 0;
  void* const spare = std::malloc(kSpare);
  if (spare) {
    const std::lock_guard closed(gate);
    for (; had < wanted; ++had) {
      heaps[had] = std::malloc(kHeap);
      if (!heaps[had]) break;
      if (pthread_create(&threads[had], &attributes, wait, &gate) != 0) {
        std::free(heaps[had]);
        break;
      }
    }
  }
  for (int i = 0; i < had; ++i) {
    pthread_join(threads[i], nullptr);
    std::free(heaps[i]);
  }
  std::free(spare);
  pthread_attr_destroy(&attributes);
  return had;
}

// OpenMP keeps, for each thread that begins parallel regions, the threads of its last one.
thread_local int held = 1;
thread_local int refused = 0;  // a number that was not to be had
thread_local std::chrono::steady_clock::time_point try_again;
std::mutex trying;

int held_threads(int wanted) {
  if (wanted == 1 || omp_in_parallel()) return std::min(wanted, held);
  if (wanted <= held) return held = wanted;  // the others leave
  if (wanted >= refused && refused > 0 && std::chrono::steady_clock::now() < try_again) return held;
  const std::lock_guard one_at_a_time(trying);
  const int had = held + threads_to_be_had(wanted - held);
  if (had > held) {
#pragma omp parallel num_threads(had)
    {}
    held = had;
  }
  refused = had < wanted ? had + 1 : 0;
  if (refused > 0) try_again = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  return held;
}

#endif

}  // namespace

int usable_threads(int wanted) {
#ifdef _OPENMP
  if (registered == 0 && parent_had_threads) return 1;
  if (wanted == 0) wanted = omp_get_max_threads();
  return held_threads(std::clamp(wanted, 1, kMaxThreads));
#else
  return std::min(wanted, 1);
#endif
}

}  // namespace upweave
