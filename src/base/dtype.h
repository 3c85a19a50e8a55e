#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "upweave/upweave.hpp"

// Element types and their exact scalar conversions. Engines have vector forms; these are the definition.
namespace upweave {

constexpr int64_t size_of(Dtype t) {
  switch (t) {
    case Dtype::kF64:
      return 8;
    case Dtype::kF32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
  }
  return 0;
}

// Unit roundoff u: |round(x) - x| <= u |x| for normal x.
constexpr double roundoff(Dtype t) {
  switch (t) {
    case Dtype::kF64:
      return 0x1p-53;
    case Dtype::kF32:
      return 0x1p-24;
    case Dtype::kF16:
      return 0x1p-11;
    case Dtype::kBF16:
      return 0x1p-8;
  }
  return 0;
}

// Half the spacing of subnormals: |round(x) - x| <= this for tiny x.
constexpr double tiny(Dtype t) {
  switch (t) {
    case Dtype::kF64:
      return std::numeric_limits<double>::denorm_min();
    case Dtype::kF32:
      return 0x1p-150;
    case Dtype::kF16:
      return 0x1p-25;
    case Dtype::kBF16:
      return 0x1p-134;
  }
  return 0;
}

// The largest finite value.
constexpr double largest(Dtype t) {
  switch (t) {
    case Dtype::kF64:
      return std::numeric_limits<double>::max();
    case Dtype::kF32:
      return std::numeric_limits<float>::max();
    case Dtype::kF16:
      return 65504.0;
    case Dtype::kBF16:
      return 0x1.fep127;
  }
  return 0;
}

inline double f16_to_double(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const int mantissa = h & 1023;
  double v;
  if (exponent == 31) {
    v = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    v = mantissa * 0x1p-24;
  } else {
    v = (1024 + mantissa) * 0x1p-25 * static_cast<double>(int64_t{1} << exponent);
  }
  return (h & 0x8000) ? -v : v;
}

inline float bf16_to_float(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

// Round to nearest even from double in one step (rounding through float first could round twice).
uint16_t double_to_f16(double v);
uint16_t double_to_bf16(double v);

// Element i of a typed array as double, and back (rounding once).
double load_element(const void* data, Dtype type, int64_t i);
void store_element(void* data, Dtype type, int64_t i, double v);

}  // namespace upweave
