// The five functions of upweave.h. Each hands its lists to call(); documents.cpp knows what they mean.
#include <array>

#include "api/c_status.h"
#include "api/device.h"
#include "api/documents.h"

namespace upweave {
namespace {

// Tensors in a GPU's memory are computed there: its number, or -1 for the host's.
int place_of(const Tensors& tensors, const void* output) {
  const auto memory = [](int gpu) {
    return gpu < 0 ? std::string("the host's memory") : fmt::format("GPU {}'s memory", gpu);
  };
  const int place = gpu_of(output);
  for (const auto& [name, data] : tensors) {
    if (const int other = gpu_of(data); data && other != place) {
      throw invalid("{} is in {} and output in {}; they must be together", name, memory(other),
                    memory(place));
    }
  }
  return place;
}

template <class T, size_t tensors, size_t sizes, size_t reals = 0>
upweave_status call(const Document& document, Dtype dtype, const T* const (&pointers)[tensors], T* output,
                    const size_t (&size)[sizes], const std::array<double, reals>& real = {}) noexcept {
  return guarded([&] {
    Tensors by_name;
    for (size_t i = 0; i < tensors; ++i) by_name[document.tensors[i].name] = pointers[i];
    const int gpu = place_of(by_name, output);
    const GpuScope scope(gpu);
    const Options options = {.dtype = dtype, .engine = gpu < 0 ? Engine::kCpu : Engine::kCuda};
    plan_of(document, options, size, real, gpu).run(by_name, output);
  });
}

}  // namespace
}  // namespace upweave

using namespace upweave;

#define UPWEAVE_FIVE(T, suffix, dtype)                                                                       \
  upweave_status upweave_conv_transpose3d_sum_layernorm_avgpool_gelu_##suffix(                               \
      const T* input, const T* kernel, T* output, size_t batch_size, size_t in_channels,                     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, double sum_weight) {                                                          \
    return call(kSumLayernormAvgpoolGelu, dtype, {input, kernel}, output,                                    \
                {batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,  \
                 stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d,            \
                 output_padding_h, output_padding_w},                                                        \
                std::array{sum_weight});                                                                     \
  }                                                                                                          \
  upweave_status upweave_conv_transpose3d_layernorm_gelu_scaling_##suffix(                                   \
      const T* input, const T* kernel, T* output, size_t batch_size, size_t in_channels,                     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, double scaling_factor) {                                                      \
    return call(kLayernormGeluScaling, dtype, {input, kernel}, output,                                       \
                {batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,  \
                 stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d,            \
                 output_padding_h, output_padding_w},                                                        \
                std::array{scaling_factor});                                                                 \
  }                                                                                                          \
  upweave_status upweave_conv_transpose3d_max_max_sum_##suffix(                                              \
      const T* input, const T* kernel, const T* conv_bias, T* output, size_t batch_size, size_t in_channels, \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w) {                                                                  \
    return call(kMaxMaxSum, dtype, {input, kernel, conv_bias}, output,                                       \
                {batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,  \
                 stride_d, stride_h, stride_w, padding_d, padding_h, padding_w});                            \
  }                                                                                                          \
  upweave_status upweave_conv_transpose3d_avgpool_clamp_softmax_multiply_##suffix(                           \
      const T* input, const T* kernel, const T* scale, T* output, size_t batch_size, size_t in_channels,     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, size_t pool_kernel, double clamp_min, double clamp_max) {                     \
    return call(kAvgpoolClampSoftmaxMultiply, dtype, {input, kernel, scale}, output,                         \
                {batch_size, in_channels, out_channels, depth, height, width, kernel_d, kernel_h, kernel_w,  \
                 stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, output_padding_d,            \
                 output_padding_h, output_padding_w, pool_kernel},                                           \
                std::array{clamp_min, clamp_max});                                                           \
  }                                                                                                          \
  upweave_status upweave_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_##suffix(                         \
      const T* input, const T* kernel, const T* bn_weight, const T* bn_bias, const T* gn_weight,             \
      const T* gn_bias, T* output, size_t batch_size, size_t in_channels, size_t out_channels,               \
      size_t height, size_t width, size_t kernel_h, size_t kernel_w, size_t stride_h, size_t stride_w,       \
      size_t padding_h, size_t padding_w, size_t output_padding_h, size_t output_padding_w, size_t groups,   \
      size_t num_groups) {                                                                                   \
    return call(kBatchnormTanhMaxpoolGroupnorm, dtype,                                                       \
                {input, kernel, bn_weight, bn_bias, gn_weight, gn_bias}, output,                             \
                {batch_size, in_channels, out_channels, height, width, kernel_h, kernel_w, stride_h,         \
                 stride_w, padding_h, padding_w, output_padding_h, output_padding_w, groups, num_groups});   \
  }

UPWEAVE_FIVE(float, f32, Dtype::kF32)
UPWEAVE_FIVE(uint16_t, f16, Dtype::kF16)
UPWEAVE_FIVE(uint16_t, bf16, Dtype::kBF16)
