#include "solution.h"

extern "C" UPWEAVE_PUBLIC void solution(const float* input, const float* kernel, float* output,
                                        size_t batch_size, size_t in_channels, size_t out_channels,
                                        size_t depth, size_t height, size_t width, size_t kernel_d,
                                        size_t kernel_h, size_t kernel_w, size_t stride_d, size_t stride_h,
                                        size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w,
                                        size_t output_padding_d, size_t output_padding_h,
                                        size_t output_padding_w, double scaling_factor) {
  report(upweave_conv_transpose3d_layernorm_gelu_scaling_f32(
      input, kernel, output, batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h,
      kernel_w, stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d,
      output_padding_h, output_padding_w, scaling_factor));
}
