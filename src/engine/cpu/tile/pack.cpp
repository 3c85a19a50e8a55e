#include "engine/cpu/tile/pack.h"

#include <algorithm>
#include <cstring>

#include "engine/cpu/tile/move.h"

namespace upweave::cpu {
namespace {

// Input elements under `n` windows that follow each other.
int64_t span(const ConvStage& conv, int64_t n) { return (n - 1) * conv.stride[2] + conv.window[2]; }

void combine(Pooling pooling, const float* x, float* acc, int64_t n) {
  const Fn fn = pooling == Pooling::kAvg ? Fn::kAdd : pooling == Pooling::kMax ? Fn::kMaximum : Fn::kMinimum;
  pointwise(fn, 0, 0, {acc, 0, 1}, {x, 0, 1}, acc, 0, 1, n);
}

// What a later step will want: channels are far apart, so no prefetcher sees the pattern.
constexpr int64_t kRowsAhead = 4;
void prefetch(const char* row, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
}

// Windows [w, w + n) of channel c: rows are combined first, then the elements of each window. What lies
// `ahead` bytes behind is called in.
void pooled_row(const ConvStage& conv, const char* data, int64_t n, int64_t c, int64_t d, int64_t h,
                int64_t w, int64_t count, int64_t ahead, float* acc, float* line, float* out) {
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
    prefetch(src + ahead, length * size_of(conv.input.type));
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

// Rows [first, end) of bfloat16 channels, columns [from, to), each pair of channels an element: they are
// turned as pairs.
void pack_pairs(const ConvStage& conv, const char* input, int64_t d, int64_t h, int64_t w, int64_t from,
                int64_t to, int64_t first, int64_t end, char* dst, int64_t row_bytes, float* stage) {
  static constexpr uint16_t kNone[kStageWidth] = {};
  const int64_t ld = conv.kernel->channels_in();
  const Dims& dims = conv.input.dims;
  const uint16_t* data = reinterpret_cast<const uint16_t*>(input);
  for (int64_t c = 0; c < dims.c; c += 2 * kLane) {
    const int64_t channels = std::min(2 * kLane, dims.c - c), pairs = (channels + 1) / 2;
    for (int64_t at = from; at < to; at += kStageWidth) {
      const int64_t count = std::min(kStageWidth, to - at);
      for (int64_t k = 0; k < pairs; ++k) {
        for (int64_t r = first; r < end; ++r) {
          const uint16_t* even =
              data + (((c + 2 * k) * dims.space[0] + d) * dims.space[1] + h + r) * dims.space[2] + w + at;
          const uint16_t* odd = 2 * k + 1 < channels ? even + dims.voxels() : kNone;
          for (int64_t next = 2; next < 4; ++next)
            prefetch(reinterpret_cast<const char*>(even + next * dims.voxels()), 2 * count);
          join(odd, even, count, stage + (r * kLane + k) * kStageWidth);
        }
      }
      for (int64_t r = first; r < end; ++r) {
        transpose(stage + r * kStageFloats, kStageWidth, pairs, count,
                  reinterpret_cast<float*>(dst + r * row_bytes) + (at * ld + c) / 2, ld / 2);
      }
    }
  }
}

}  // namespace

int64_t pack_scratch_floats(const ConvStage& conv) {
  return kStageFloats * (kPackRows + 1) + 2 * (padded(span(conv, kStageWidth)) + kLane);
}

void pack_rows(const ConvStage& conv, const Bases& bases, const Box& box, int64_t n, int64_t d, int64_t h,
               int64_t rows, char* dst, float* scratch) {
  const bool bf16 = conv.kernel->input_type() == Dtype::kBF16;
  const int64_t ld = conv.kernel->channels_in(), size = bf16 ? 2 : 4, width = box.extent[2];
  const int64_t at_d = box.lo[0] + d, row_bytes = width * ld * size;
  const int64_t from = std::clamp<int64_t>(-box.lo[2], 0, width);
  const int64_t to = std::clamp<int64_t>(conv.in.space[2] - box.lo[2], from, width);
  const bool outside = at_d < 0 || at_d >= conv.in.space[0] || from == to;
  const int64_t first = std::clamp<int64_t>(-box.lo[1] - h, 0, rows);
  const int64_t end = outside ? first : std::clamp<int64_t>(conv.in.space[1] - box.lo[1] - h, first, rows);
  for (int64_t r = 0; r < rows; ++r) {
    char* row = dst + r * row_bytes;
    if (r < first || r >= end || ld != conv.in.c) {
      std::memset(row, 0, static_cast<size_t>(row_bytes));
    } else {
      std::memset(row, 0, static_cast<size_t>(from * ld * size));
      std::memset(row + to * ld * size, 0, static_cast<size_t>((width - to) * ld * size));
    }
  }
  float* stage = scratch;
  float* turned = stage + kPackRows * kStageFloats;
  float* acc = turned + kStageFloats;
  float* line = acc + padded(span(conv, kStageWidth)) + kLane;
  const char* data = conv.input.read(bases);
  const Dims& dims = conv.input.dims;
  const int64_t element = size_of(conv.input.type), at_h = box.lo[1] + h;
  if (bf16 && !conv.pool) {  // and nothing else in front of the convolution
    const char* sample = data + n * dims.c * dims.voxels() * element;
    return pack_pairs(conv, sample, at_d, at_h, box.lo[2], from, to, first, end, dst, row_bytes, stage);
  }
  for (int64_t c = 0; c < conv.in.c; c += kLane) {
    const int64_t channels = std::min(kLane, conv.in.c - c);
    for (int64_t w = from; w < to; w += kStageWidth) {
      const int64_t count = std::min(kStageWidth, to - w), at_w = box.lo[2] + w;
      auto source = [&](int64_t k, int64_t r) {
        return data +
               ((((n * dims.c + c + k) * dims.space[0] + at_d) * dims.space[1] + at_h + r) * dims.space[2] +
                at_w) *
                   element;
      };
      auto target = [&](int64_t r) { return dst + r * row_bytes + (w * ld + c) * size; };
      if (conv.input.type == Dtype::kF32 && !conv.pool && conv.points.empty() && !bf16) {
        for (int64_t r = first; r < end; ++r) {
          for (int64_t k = 0; k < channels; ++k) prefetch(source(k, r + kRowsAhead), count * element);
          transpose(reinterpret_cast<const float*>(source(0, r)), dims.voxels(), channels, count,
                    reinterpret_cast<float*>(target(r)), ld);
        }
        continue;
      }
      // Rows of a channel follow each other in memory, so they are read together.
      for (int64_t k = 0; k < channels; ++k) {
        const int64_t next = c + k + 1 < conv.in.c ? dims.voxels()
                                                   : (end - first) * conv.stride[1] * dims.space[2] -
                                                         (dims.c - 1) * dims.voxels();
        for (int64_t r = first; r < end; ++r) {
          float* row = stage + (r * kLane + k) * kStageWidth;
          if (conv.pool) {
            pooled_row(conv, data, n, c + k, at_d, at_h + r, at_w, count, next * element, acc, line, row);
          } else {
            prefetch(source(k, r) + next * element, count * element);
            expand(source(k, r), conv.input.type, count, row);
          }
        }
      }
      for (int64_t r = first; r < end; ++r) {
        float* rows_of_r = stage + r * kStageFloats;
        pointwise_head(conv, bases, n, c, channels, count, rows_of_r);
        if (!bf16) {
          transpose(rows_of_r, kStageWidth, channels, count, reinterpret_cast<float*>(target(r)), ld);
          continue;
        }
        transpose(rows_of_r, kStageWidth, channels, count, turned, kLane);
        for (int64_t k = 0; k < count; ++k) {
          shrink(turned + k * kLane, channels, target(r) + k * ld * size, Dtype::kBF16, false);
        }
      }
    }
  }
}

}  // namespace upweave::cpu
