#include "solution.h"

extern "C" UPWEAVE_PUBLIC void solution(const float* input, const float* kernel, const float* bn_weight,
                                        const float* bn_bias, const float* gn_weight, const float* gn_bias,
                                        float* output, size_t batch_size, size_t in_channels,
                                        size_t out_channels, size_t height, size_t width, size_t kernel_h,
                                        size_t kernel_w, size_t stride_h, size_t stride_w, size_t padding_h,
                                        size_t padding_w, size_t output_padding_h, size_t output_padding_w,
                                        size_t groups, size_t num_groups) {
  report(upweave_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_f32(
      input, kernel, bn_weight, bn_bias, gn_weight, gn_bias, output, batch_size, in_channels, out_channels,
      height, width, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, output_padding_h,
      output_padding_w, groups, num_groups));
}
