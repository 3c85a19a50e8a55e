#include "engine/cpu/slices.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace upweave::cpu {
namespace {

std::atomic<int64_t> last_level_for_test{0};

}  // namespace

int64_t last_level_bytes() {
  const int64_t bytes = last_level_for_test;
  return bytes > 0 ? bytes : int64_t{20} << 20;
}
void set_last_level_bytes_for_test(int64_t bytes) { last_level_for_test = bytes; }

void copy_block(const void* from, const Shape& whole, const Shape& part, int64_t b, int64_t element_bytes,
                void* to) {
  const int64_t bytes = count(part) * element_bytes;
  const size_t axis = static_cast<size_t>(std::ranges::mismatch(whole, part).in1 - whole.begin());
  if (axis == whole.size()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  int64_t outer = 1;
  for (size_t a = 0; a < axis; ++a) outer *= whole[a];
  const int64_t piece = bytes / outer, row = piece / part[axis] * whole[axis];
  for (int64_t i = 0; i < outer; ++i) {
    std::memcpy(static_cast<char*>(to) + i * piece, static_cast<const char*>(from) + i * row + b * piece,
                static_cast<size_t>(piece));
  }
}

}  // namespace upweave::cpu
