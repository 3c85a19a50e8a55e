#include "base/dtype.h"

#include <cmath>

namespace upweave {
namespace {

// The double rounded to nearest even with `digits` significant bits and least exponent `emin`:
// scale so that the target's last place is 1, let nearbyint round, scale back.
double round_to(double v, int digits, int emin) {
  if (v == 0 || !std::isfinite(v)) return v;
  int e;
  std::frexp(v, &e);  // |v| in [2^(e-1), 2^e)
  const int unit = std::max(e - digits, emin);
  return std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
}

}  // namespace

uint16_t double_to_f16(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return sign | 0x7e00;
  const double r = std::fabs(round_to(v, 11, -24));
  if (r > largest(Dtype::kF16)) return sign | 0x7c00;
  if (r < 0x1p-14) return sign | static_cast<uint16_t>(r * 0x1p24);
  int e;
  const double m = std::frexp(r, &e);  // r = m 2^e, m in [1/2, 1)
  return static_cast<uint16_t>(sign | ((e + 14) << 10) | (static_cast<int>(m * 2048) & 1023));
}

uint16_t double_to_bf16(double v) {
  if (std::isnan(v)) return static_cast<uint16_t>((std::signbit(v) ? 0x8000 : 0) | 0x7fc0);
  const double r = round_to(v, 8, -133);
  const float f = std::fabs(r) > largest(Dtype::kBF16)
                      ? std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(v))
                      : static_cast<float>(r);  // exact: 8 digits fit
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
}

double load_element(const void* data, Dtype type, int64_t i) {
  switch (type) {
    case Dtype::kF64:
      return static_cast<const double*>(data)[i];
    case Dtype::kF32:
      return static_cast<const float*>(data)[i];
    case Dtype::kF16:
      return f16_to_double(static_cast<const uint16_t*>(data)[i]);
    case Dtype::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[i]);
  }
  return 0;
}

void store_element(void* data, Dtype type, int64_t i, double v) {
  switch (type) {
    case Dtype::kF64:
      static_cast<double*>(data)[i] = v;
      break;
    case Dtype::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(v);
      break;
    case Dtype::kF16:
      static_cast<uint16_t*>(data)[i] = double_to_f16(v);
      break;
    case Dtype::kBF16:
      static_cast<uint16_t*>(data)[i] = double_to_bf16(v);
      break;
  }
}

}  // namespace upweave
