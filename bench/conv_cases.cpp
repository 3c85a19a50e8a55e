#include "conv_cases.h"

#include <fmt/format.h>

namespace upweave::bench {
namespace {

using cpu::ConvShape;
using cpu::Extents;

Extents along(int rank, int64_t n, int64_t else_) { return {rank > 2 ? n : else_, rank > 1 ? n : else_, n}; }

// An ordinary convolution that keeps its extent, but for its step.
ConvCase conv(int rank, int64_t c_in, int64_t c_out, int64_t k, int64_t n, int64_t d = 1, int64_t step = 1,
              int64_t groups = 1) {
  ConvShape s;
  s.c_in = c_in, s.c_out = c_out, s.groups = groups;
  s.kernel = along(rank, k, 1), s.dilation = along(rank, d, 1), s.step = along(rank, step, 1);
  s.padding = along(rank, d * (k - 1) - d * (k - 1) / 2, 0);
  s.in = along(rank, n, 1), s.out = along(rank, (n + step - 1) / step, 1);
  return {
      fmt::format("conv {}d k{} d{} s{} g{} {}->{} {}^{}", rank, k, d, step, groups, c_in, c_out, n, rank),
      s,
      {}};
}

// A transposed one that makes each extent `stride` times larger.
ConvCase up(int rank, int64_t c_in, int64_t c_out, int64_t k, int64_t stride, int64_t n) {
  ConvShape s;
  s.c_in = c_in, s.c_out = c_out;
  s.kernel = along(rank, k, 1), s.stride = along(rank, stride, 1);
  s.padding = along(rank, (k - stride) / 2, 0);
  s.in = along(rank, n, 1), s.out = along(rank, n * stride, 1);
  return {fmt::format("up {}d k{} s{} {}->{} {}^{}", rank, k, stride, c_in, c_out, n, rank), s, {}};
}

std::vector<ConvCase> make_cases() {
  std::vector<ConvCase> all = {
      {"k3 s2 32->64 16x32x32",
       {32, 64, 1, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {16, 32, 32}, {32, 64, 64}},
       {{2, 4, 4}, {4, 4, 4}}},
      {"k4 s2 32->64 16x32x32",
       {32, 64, 1, {4, 4, 4}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {16, 32, 32}, {32, 64, 64}},
       {{2, 4, 4}, {4, 4, 4}}},
      {"k5 s2 32->64 32x32x32 pool 6",
       {32, 64, 1, {5, 5, 5}, {2, 2, 2}, {1, 1, 1}, {2, 2, 2}, {32, 32, 32}, {60, 60, 60}, {6, 6, 6}},
       {{3, 3, 3}}},
      {"2d k5 s1 64->128 32x32 pool 2",
       {64, 128, 1, {1, 5, 5}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 34, 34}, {1, 2, 2}},
       {{1, 2, 2}, {1, 4, 4}}},
      {"2d k4 s2 64->64 32x32",
       {64, 64, 1, {1, 4, 4}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 64, 64}},
       {{1, 4, 4}}},
      {"2d k3 s2 64->64 32x32",
       {64, 64, 1, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 32, 32}, {1, 64, 64}},
       {{1, 4, 4}}},
      {"2d k4 s2 256->128 8x8",
       {256, 128, 1, {1, 4, 4}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 8, 8}, {1, 16, 16}},
       {{1, 4, 4}, {1, 2, 4}}},
      {"1d k4 s2 64->64 2048",
       {64, 64, 1, {1, 1, 4}, {1, 1, 2}, {1, 1, 1}, {0, 0, 1}, {1, 1, 2048}, {1, 1, 4096}},
       {{1, 1, 4}}},
  };
  const auto add = [&](ConvCase c) { all.push_back(std::move(c)); };
  // Kernels as wide as the stride: plain matrix products stored as phases.
  for (const int rank : {2, 3}) {
    for (const int64_t k : {1, 2, 4}) add(up(rank, 64, 64, k, k, rank == 2 ? 32 : 16));
  }
  add(up(2, 256, 64, 2, 2, 64));     // SAM
  add(up(2, 64, 32, 2, 2, 128));     // SAM
  add(up(2, 256, 256, 2, 2, 14));    // a mask head
  add(up(3, 320, 256, 2, 2, 4));     // DynUNet
  add(up(2, 768, 256, 4, 2, 16));    // ViTPose
  add(up(2, 256, 256, 4, 2, 32));    // ViTPose
  add(up(1, 512, 256, 16, 8, 128));  // HiFi-GAN
  add(up(1, 64, 32, 4, 2, 4096));    // HiFi-GAN
  add(up(1, 1536, 768, 16, 8, 64));  // DAC
  add(up(3, 64, 32, 3, 2, 16));      // MONAI's UNet, but for its output padding
  // Steps.
  add(conv(2, 64, 64, 3, 64, 1, 2));
  add(conv(3, 32, 64, 3, 32, 1, 2));
  add(conv(3, 16, 32, 3, 32, 1, 2));
  add(conv(1, 64, 128, 7, 4096, 1, 2));
  // Few output channels, few input channels.
  for (const int64_t c : {1, 3, 5, 12}) add(conv(2, 128, c, 3, 64));
  add(conv(1, 32, 1, 7, 16384));
  add(conv(3, 32, 3, 1, 32));
  add(conv(3, 16, 2, 3, 32));
  for (const int64_t c : {1, 3, 6}) add(conv(2, c, 64, 3, 64));
  add(conv(3, 1, 32, 3, 32));
  add(conv(2, 3, 64, 7, 64));
  // Much to read for few positions.
  add(conv(3, 320, 320, 3, 4));
  add(conv(3, 320, 320, 3, 8));
  add(conv(3, 256, 256, 3, 6));
  add(conv(1, 1536, 1536, 7, 64));
  add(conv(2, 512, 512, 3, 16));
  // 1x1.
  add(conv(2, 64, 256, 1, 56));
  add(conv(3, 32, 32, 1, 32));
  // Depthwise and grouped.
  add(conv(2, 256, 256, 3, 32, 1, 1, 256));
  add(conv(2, 96, 96, 7, 56, 1, 1, 96));
  add(conv(1, 512, 512, 7, 2048, 1, 1, 512));
  add(conv(3, 64, 64, 3, 16, 1, 1, 64));
  add(conv(2, 128, 128, 3, 32, 1, 1, 32));
  add(conv(2, 128, 128, 3, 32, 1, 1, 16));
  add(conv(2, 128, 128, 3, 32, 1, 1, 4));
  // Residual blocks of vocoders.
  for (const int64_t c : {256, 128, 64, 32}) {
    for (const int64_t k : {3, 7, 11}) {
      for (const int64_t d : {1, 3, 5}) add(conv(1, c, c, k, c > 64 ? 2048 : 8192, d));
    }
  }
  add(conv(1, 768, 768, 7, 512, 9));
  add(conv(1, 96, 96, 7, 8192, 9));
  // 3x3 and 3x3x3.
  for (const int64_t c : {32, 64, 128, 256, 512}) add(conv(2, c, c, 3, 32));
  for (const int64_t c : {16, 32, 64, 128, 256}) add(conv(3, c, c, 3, c > 64 ? 12 : 24));
  return all;
}

}  // namespace

const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> all = make_cases();
  return all;
}

}  // namespace upweave::bench
