// Which algorithm serves a convolution.
#include "engine/cpu/conv.h"

#include "base/error.h"

namespace upweave::cpu {

std::unique_ptr<ConvKernel> make_conv_kernel(const ConvShape& shape, Dtype type, Algorithm) {
  if (type == Dtype::kBF16) {
    try {
      return make_bf16_conv(shape);
    } catch (const Error& e) {
      if (e.status() != Status::kUnsupported) throw;
    }
  }
  return make_direct_conv(shape);
}

}  // namespace upweave::cpu
