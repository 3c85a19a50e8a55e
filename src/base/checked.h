#pragma once
#include <cstdint>

#include "base/error.h"

// Sizes come from strangers: every product and sum of extents goes through these.
namespace upweave {

inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) throw invalid("{} overflows 64 bits: {} * {}", what, a, b);
  return r;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) throw invalid("{} overflows 64 bits: {} + {}", what, a, b);
  return r;
}

}  // namespace upweave
