#include "engine/cpu/tile_lay.h"

#include <algorithm>
#include <cstring>

#include "engine/cpu/tile_move.h"

namespace upweave::cpu {
namespace {

// Input elements under `n` windows that follow each other.
int64_t span(const ConvStage& conv, int64_t n) { return (n - 1) * conv.stride[2] + conv.window[2]; }

void combine(Pooling pooling, const float* x, float* acc, int64_t n) {
  const Fn fn = pooling == Pooling::kAvg ? Fn::kAdd : pooling == Pooling::kMax ? Fn::kMaximum : Fn::kMinimum;
  pointwise(fn, 0, 0, {acc, 0, 1}, {x, 0, 1}, acc, 0, 1, n);
}

// A row that a later call will want: channels are far apart, so no prefetcher sees the pattern.
constexpr int64_t kRowsAhead = 4;
void prefetch(const char* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
}

// Windows [w, w + n) of channel c: rows are combined first, then the elements of each window.
void pooled_row(const ConvStage& conv, const char* data, int64_t n, int64_t c, int64_t d, int64_t h,
                int64_t w, int64_t count, float* acc, float* line, float* out) {
  constexpr int64_t kMaxRows = 16;
  const Dims& dims = conv.input.dims;
  const int64_t length = span(conv, count), all = conv.window[0] * conv.window[1];
  // Float32 rows are read where they lie, if whole vectors of them are there.
  const bool direct = conv.input.type == Dtype::kF32 && all <= kMaxRows && count % kLane == 0 &&
                      conv.window[2] == conv.stride[2];
  const float* rows[kMaxRows] = {acc};
  for (int64_t k = 0; k < all; ++k) {
    const int64_t row =
        ((n * dims.c + c) * dims.space[0] + d * conv.stride[0] + k / conv.window[1]) * dims.space[1] +
        h * conv.stride[1] + k % conv.window[1];
    const char* src = data + (row * dims.space[2] + w * conv.stride[2]) * size_of(conv.input.type);
    prefetch(src + conv.stride[1] * dims.space[2] * size_of(conv.input.type),
             length * size_of(conv.input.type));
    if (direct) {
      rows[k] = reinterpret_cast<const float*>(src);
      continue;
    }
    expand(src, conv.input.type, length, k == 0 ? acc : line);
    if (k > 0) combine(conv.pooling, line, acc, length);
  }
  const float scale = conv.pooling == Pooling::kAvg
                          ? static_cast<float>(1.0 / static_cast<double>(all * conv.window[2]))
                          : 1.0f;
  pool_rows(conv.pooling, rows, direct ? static_cast<int>(all) : 1, conv.window[2], conv.stride[2], count,
            scale, out);
}

void pointwise_head(const ConvStage& conv, const Bases& bases, int64_t n, int64_t c, int64_t channels,
                    int64_t width, float* stage) {
  alignas(64) float operand[kLane];
  for (const ConvStage::Point& p : conv.points) {
    const View x{stage, kStageWidth, 1};
    View y{&p.a, 0, 0};
    if (p.operand.exists()) {
      load_vector(p.operand, bases, n, c, channels, operand);
      y = {operand, 1, 0};
    }
    pointwise(p.fn, p.a, p.b, x, y, stage, kStageWidth, channels, width);
  }
}

}  // namespace

int64_t lay_scratch_floats(const ConvStage& conv) {
  return kStageFloats * 2 + 2 * (padded(span(conv, kStageWidth)) + kLane);
}

void lay_row(const ConvStage& conv, const Bases& bases, const Box& box, int64_t n, int64_t d, int64_t h,
             char* dst, float* scratch) {
  const bool bf16 = conv.kernel->input_type() == Dtype::kBF16;
  const int64_t ld = conv.kernel->channels_in(), size = bf16 ? 2 : 4, width = box.extent[2];
  const int64_t at_d = box.lo[0] + d, at_h = box.lo[1] + h;
  const int64_t from = std::clamp<int64_t>(-box.lo[2], 0, width);
  const int64_t to = std::clamp<int64_t>(conv.in.space[2] - box.lo[2], from, width);
  const bool outside =
      at_d < 0 || at_d >= conv.in.space[0] || at_h < 0 || at_h >= conv.in.space[1] || from == to;
  if (outside || ld != conv.in.c) {
    std::memset(dst, 0, static_cast<size_t>(width * ld * size));
    if (outside) return;
  }
  std::memset(dst, 0, static_cast<size_t>(from * ld * size));
  std::memset(dst + to * ld * size, 0, static_cast<size_t>((width - to) * ld * size));
  float* stage = scratch;
  float* turned = stage + kStageFloats;
  float* acc = turned + kStageFloats;
  float* line = acc + padded(span(conv, kStageWidth)) + kLane;
  const char* data = conv.input.read(bases);
  const Dims& dims = conv.input.dims;
  for (int64_t c = 0; c < conv.in.c; c += kLane) {
    const int64_t channels = std::min(kLane, conv.in.c - c);
    for (int64_t w = from; w < to; w += kStageWidth) {
      const int64_t count = std::min(kStageWidth, to - w), at_w = box.lo[2] + w;
      if (conv.input.type == Dtype::kF32 && !conv.pool && conv.points.empty() && !bf16) {
        const int64_t at =
            (((n * dims.c + c) * dims.space[0] + at_d) * dims.space[1] + at_h) * dims.space[2] + at_w;
        for (int64_t k = 0; k < channels; ++k) {
          prefetch(data + (at + k * dims.voxels() + kRowsAhead * dims.space[2]) * 4, count * 4);
        }
        transpose(reinterpret_cast<const float*>(data) + at, dims.voxels(), channels, count,
                  reinterpret_cast<float*>(dst) + w * ld + c, ld);
        continue;
      }
      for (int64_t k = 0; k < channels; ++k) {
        float* row = stage + k * kStageWidth;
        if (conv.pool) {
          pooled_row(conv, data, n, c + k, at_d, at_h, at_w, count, acc, line, row);
        } else {
          const int64_t at =
              (((n * dims.c + c + k) * dims.space[0] + at_d) * dims.space[1] + at_h) * dims.space[2] + at_w;
          const char* src = data + at * size_of(conv.input.type);
          prefetch(src + kRowsAhead * dims.space[2] * size_of(conv.input.type),
                   count * size_of(conv.input.type));
          expand(src, conv.input.type, count, row);
        }
      }
      pointwise_head(conv, bases, n, c, channels, count, stage);
      if (!bf16) {
        transpose(stage, kStageWidth, channels, count, reinterpret_cast<float*>(dst) + w * ld + c, ld);
        continue;
      }
      transpose(stage, kStageWidth, channels, count, turned, kLane);
      for (int64_t k = 0; k < count; ++k) {
        shrink(turned + k * kLane, channels, dst + ((w + k) * ld + c) * size, Dtype::kBF16, false);
      }
    }
  }
}

}  // namespace upweave::cpu
