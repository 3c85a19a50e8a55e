#include "engine/engine.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
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

void Program::copy(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }

#define UPWEAVE_ENGINE(name, value) extern const EngineEntry name##_engine;
#include "base/engines.inc"
#undef UPWEAVE_ENGINE

const EngineEntry& engine_of(Engine engine) {
#define UPWEAVE_ENGINE(name, value) \
  if (engine == value) return name##_engine;
#include "base/engines.inc"
#undef UPWEAVE_ENGINE
  throw invalid("engine is {}, which is none that exists", static_cast<int>(engine));
}

}  // namespace upweave
