#include "engine/cuda/device_forms.h"

#include <utility>

namespace upweave::cuda {

const char* device_form(Op op) {
  static constexpr std::pair<Op, const char*> kForms[] = {
      {Op::kElu, "return x > 0.f ? x : a * expm1f(x);"},
      {Op::kSoftplus,
       "const float t = x * a; return t > b ? x : (fmaxf(t, 0.f) + log1pf(expf(-fabsf(t)))) / a;"},
      {Op::kSin, "return sinf(x);"},
      {Op::kAbs, "return fabsf(x);"},
      {Op::kSqrt, "return sqrtf(x);"},
      {Op::kPrelu, "return x > 0.f ? x : a * x;"},
  };
  for (const auto& [known, body] : kForms) {
    if (known == op) return body;
  }
  return nullptr;
}

}  // namespace upweave::cuda
