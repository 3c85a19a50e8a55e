#include "engine/engine.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace upweave {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void* Program::allocate(size_t bytes) const {
  // Blocks of huge pages start on one, so that the kernel can back them with few faults.
  const bool large = bytes >= kHugePage;
  const size_t alignment = large ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded ? rounded : alignment);
  if (!p) throw std::bad_alloc();
  // Of a few huge pages, the last may be more than was asked for; of many, it stays small pages.
  const size_t huge = bytes < 4 * kHugePage ? rounded : bytes / kHugePage * kHugePage;
  if (large) madvise(p, huge, MADV_HUGEPAGE);  // advice: a refusal costs speed, not correctness
  return p;
}

void Program::release(void* p) const { std::free(p); }

// A core's FMA peak over its share of the memory's rate, and a tensor core's.
Target target_of(Engine engine) {
  switch (engine) {
    case Engine::kReference:
      return {.flops_per_byte = 10, .fuse = true};
    case Engine::kCpu:
      return {.flops_per_byte = 10, .fuse = true};
    case Engine::kCuda:
      return {.flops_per_byte = 60, .fuse = true};
  }
  return {};
}

}  // namespace upweave
