// Row-major rows of a source, transposed into the packed input of a convolution.
#include <algorithm>

#include "engine/cpu/tile/head.h"
#include "engine/cpu/tile/move.h"

namespace upweave::cpu {
namespace {

// Input elements under `n` windows that follow each other.
int64_t span(const ConvSource& source, int64_t n) { return (n - 1) * source.stride[2] + source.window[2]; }

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
void pooled_row(const ConvSource& source, const char* data, int64_t n, int64_t c, int64_t d, int64_t h,
                int64_t w, int64_t count, int64_t ahead, float* acc, float* line, float* out) {
  constexpr int64_t kMaxRows = 16;
  const Dims& dims = source.memory.dims;
  const int64_t length = span(source, count), all = source.window[0] * source.window[1];
  // Float32 rows are read where they lie, if whole vectors of them are there.
  const bool direct = source.memory.type == Dtype::kF32 && all <= kMaxRows && count % kLane == 0 &&
                      source.window[2] == source.stride[2];
  const float* rows[kMaxRows] = {acc};
  for (int64_t k = 0; k < all; ++k) {
    const int64_t row =
        ((n * dims.c + c) * dims.space[0] + d * source.stride[0] + k / source.window[1]) * dims.space[1] +
        h * source.stride[1] + k % source.window[1];
    const char* src = data + (row * dims.space[2] + w * source.stride[2]) * size_of(source.memory.type);
    prefetch(src + ahead, length * size_of(source.memory.type));
    if (direct) {
      rows[k] = reinterpret_cast<const float*>(src);
      continue;
    }
    expand(src, source.memory.type, length, k == 0 ? acc : line);
    if (k > 0) combine(source.pooling, line, acc, length);
  }
  const float scale = source.pooling == Pooling::kAvg
                          ? static_cast<float>(1.0 / static_cast<double>(all * source.window[2]))
                          : 1.0f;
  pool_rows(source.pooling, rows, direct ? static_cast<int>(all) : 1, source.window[2], source.stride[2],
            count, scale, out);
}

// Channels [c, c + channels), a row of the stage each, through the steps.
void turned_steps(const ConvSource& source, const float* vectors, int64_t c, int64_t channels, int64_t width,
                  float* stage) {
  const int64_t ld = padded(source.dims.c);
  const float* v = vectors + c;
  for (const Step& step : source.steps) {
    const View x{stage, kStageWidth, 1};
    if (step.what == Step::What::kFactors) {
      affine(x, {v, 1, 0}, {v + ld, 1, 0}, {v + 2 * ld, 1, 0}, stage, kStageWidth, channels, width);
      v += 3 * ld;
      continue;
    }
    View y{&step.a, 0, 0};
    if (step.memory.exists()) {
      y = {v, 1, 0};
      v += ld;
    }
    pointwise(step.fn, step.a, step.b, x, y, stage, kStageWidth, channels, width);
  }
}

// Rows of bfloat16 channels, each pair of channels an element: they are turned as pairs.
void turn_pairs(const ConvSource& source, const char* input, const PackedRows& rows, float* stage) {
  static constexpr uint16_t kNone[kStageWidth] = {};
  const int64_t ld = rows.ld;
  const Dims& dims = source.memory.dims;
  const uint16_t* data = reinterpret_cast<const uint16_t*>(input);
  for (int64_t c = 0; c < dims.c; c += 2 * kLane) {
    const int64_t channels = std::min(2 * kLane, dims.c - c), pairs = (channels + 1) / 2;
    for (int64_t at = rows.from; at < rows.to; at += kStageWidth) {
      const int64_t count = std::min(kStageWidth, rows.to - at);
      for (int64_t k = 0; k < pairs; ++k) {
        for (int64_t r = rows.first; r < rows.end; ++r) {
          const uint16_t* even =
              data + (((c + 2 * k) * dims.space[0] + rows.d) * dims.space[1] + rows.h + r) * dims.space[2] +
              rows.w + at;
          const uint16_t* odd = 2 * k + 1 < channels ? even + dims.voxels() : kNone;
          for (int64_t next = 2; next < 4; ++next)
            prefetch(reinterpret_cast<const char*>(even + next * dims.voxels()), 2 * count);
          join(odd, even, count, stage + (r * kLane + k) * kStageWidth);
        }
      }
      for (int64_t r = rows.first; r < rows.end; ++r) {
        transpose(stage + r * kStageFloats, kStageWidth, pairs, count,
                  reinterpret_cast<float*>(rows.dst + r * rows.row_bytes) + (at * ld + c) / 2, ld / 2);
      }
    }
  }
}

}  // namespace

int64_t turn_scratch_floats(const ConvSource& source) {
  return kStageFloats * (kPackRows + 1) + 2 * (padded(span(source, kStageWidth)) + kLane);
}

void turn_rows(const ConvSource& source, const Bases& bases, const PackedRows& rows, const float* vectors,
               float* scratch) {
  const bool bf16 = rows.type == Dtype::kBF16;
  const int64_t ld = rows.ld, size = size_of(rows.type);
  float* stage = scratch;
  float* turned = stage + kPackRows * kStageFloats;
  float* acc = turned + kStageFloats;
  float* line = acc + padded(span(source, kStageWidth)) + kLane;
  const char* data = source.memory.read(bases);
  const Dims& dims = source.memory.dims;
  const int64_t element = size_of(source.memory.type);
  if (bf16 && !source.pool)  // and nothing else in front of the convolution
    return turn_pairs(source, data + rows.n * dims.c * dims.voxels() * element, rows, stage);
  for (int64_t c = 0; c < source.dims.c; c += kLane) {
    const int64_t channels = std::min(kLane, source.dims.c - c);
    for (int64_t w = rows.from; w < rows.to; w += kStageWidth) {
      const int64_t count = std::min(kStageWidth, rows.to - w), at_w = rows.w + w;
      auto from = [&](int64_t k, int64_t r) {
        const int64_t row = ((rows.n * dims.c + c + k) * dims.space[0] + rows.d) * dims.space[1] + rows.h + r;
        return data + (row * dims.space[2] + at_w) * element;
      };
      auto target = [&](int64_t r) { return rows.dst + r * rows.row_bytes + (w * ld + c) * size; };
      if (source.memory.type == Dtype::kF32 && source.as_given() && !bf16) {
        for (int64_t r = rows.first; r < rows.end; ++r) {
          for (int64_t k = 0; k < channels; ++k) prefetch(from(k, r + kRowsAhead), count * element);
          transpose(reinterpret_cast<const float*>(from(0, r)), dims.voxels(), channels, count,
                    reinterpret_cast<float*>(target(r)), ld);
        }
        continue;
      }
      // Rows of a channel follow each other in memory, so they are read together.
      for (int64_t k = 0; k < channels; ++k) {
        const int64_t next =
            c + k + 1 < source.dims.c
                ? dims.voxels()
                : (rows.end - rows.first) * source.stride[1] * dims.space[2] - (dims.c - 1) * dims.voxels();
        for (int64_t r = rows.first; r < rows.end; ++r) {
          float* row = stage + (r * kLane + k) * kStageWidth;
          if (source.pool) {
            pooled_row(source, data, rows.n, c + k, rows.d, rows.h + r, at_w, count, next * element, acc,
                       line, row);
          } else {
            prefetch(from(k, r) + next * element, count * element);
            expand(from(k, r), source.memory.type, count, row);
          }
        }
      }
      for (int64_t r = rows.first; r < rows.end; ++r) {
        float* rows_of_r = stage + r * kStageFloats;
        turned_steps(source, vectors, c, channels, count, rows_of_r);
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
