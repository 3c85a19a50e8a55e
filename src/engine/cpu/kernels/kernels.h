#pragma once
// The loops that a tile goes through between the convolution and memory, each dispatched at run time to the
// best instruction set. A tile is float32 rows of `ld` elements; rows begin at multiples of 64 bytes and may
// be read and written up to the next multiple of 16 elements, so that no loop has a remainder.
#include <array>
#include <cstdint>

#include "engine/cpu/conv/conv.h"
#include "graph/op.h"
#include "upweave/upweave.hpp"

namespace upweave::cpu {

constexpr int64_t kLane = 16;  // elements that rows are padded to
constexpr int64_t padded(int64_t n) { return (n + kLane - 1) / kLane * kLane; }

// What tiles compute element by element: the pointwise operations, by their ids, and what only tiles need.
enum class Fn : uint8_t {
#define UPWEAVE_OP(id) id,
#include "operation_ids.inc"
#undef UPWEAVE_OP
  kCopy,
  kSign,      // 1 or -1
  kExpBelow,  // exp(clamp(x, lo, hi) - hi), hi - lo <= 1
  kGeluTanh,
};
constexpr Fn fn_of(Op op) { return static_cast<Fn>(op); }
enum class Fold : uint8_t { kSum, kMean, kMax, kMin, kLogSumExp };

// Element (r, c) is p[r*row + c*col]; col is 0 or 1, so a vector broadcasts along either axis.
struct View {
  const float* p = nullptr;
  int64_t row = 0, col = 0;
};

// out[r*ld + c] = fn(x, y); `a` and `b` are the function's own numbers (slope; lo, hi). `out` may be x or y.
// False, and nothing is done, if there is no vector form of fn.
bool pointwise(Fn fn, float a, float b, const View& x, const View& y, float* out, int64_t ld, int64_t rows,
               int64_t cols);
// out = (x - center) * scale + shift.
void affine(const View& x, const View& center, const View& scale, const View& shift, float* out, int64_t ld,
            int64_t rows, int64_t cols);

// out = x / y * z, where y and z are the same along rows or along columns.
void scale(const View& x, const View& y, const View& z, float* out, int64_t ld, int64_t rows, int64_t cols);

// Along each row of exactly `cols` elements.
void fold_rows(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, float* out);
void softmax_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, float* out);
// x / sqrt(mean(x^2) + eps)
void rms_norm_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out);
// (x - mean) / sqrt(var + eps), the variance from the differences.
void layer_norm_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double eps, float* out);
// The mean of each row and the sum of squared differences from it.
void moments_rows(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2);

// Down each column; results are float64 for combination with other tiles'. `scratch` holds 2*padded(cols).
void fold_columns(Fold fold, const float* x, int64_t ld, int64_t rows, int64_t cols, double* out,
                  float* scratch);
void moments_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* mean, double* m2,
                     float* scratch);

// Largest and sum of exp(x - largest) of each column.
void exp_sum_columns(const float* x, int64_t ld, int64_t rows, int64_t cols, double* top, double* sum,
                     float* scratch);

enum class Pooling : uint8_t { kMax, kMin, kAvg, kSum };
// Windows over the positions of a channels-last tile whose extents are `in`. `sign` (1 or -1 a channel, or
// null) turns the maximum into the minimum where it is -1.
void pool_tile(Pooling pooling, const float* x, const Extents& in, int64_t ld, const Extents& window,
               const Extents& stride, const float* sign, float* out, const Extents& extent);
// The average of windows that follow each other, of rows that are normalized on the way: rms or layer norm
// over `cols`. For windows of at most 16 lines of at most 16 positions.
constexpr int64_t kNormPoolLines = 16;
void norm_pool_tile(bool rms, const float* x, const Extents& in, int64_t ld, int64_t cols, double eps,
                    const Extents& window, float* out, const Extents& extent);
// out[k] = scale times all of rows[r][k*stride + e], e < window, combined: over rows first, then along the
// window. Rows and out are padded to whole vectors.
void pool_rows(Pooling pooling, const float* const* rows, int count, int64_t window, int64_t stride,
               int64_t n, float scale, float* out);

// Element types: `n` elements between memory and float32.
void expand(const void* src, Dtype type, int64_t n, float* dst);
// `stream` bypasses the caches where whole aligned vectors allow it.
void shrink(const float* src, int64_t n, void* dst, Dtype type, bool stream);
// dst[c*dst_ld + r] = src[r*src_ld + c]
void transpose(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst, int64_t dst_ld);
// The same past the caches, if whole aligned lines allow it here; false if nothing was done.
bool transpose_stream(const float* src, int64_t src_ld, int64_t rows, int64_t cols, float* dst,
                      int64_t dst_ld);
// `rows` rows of `n` elements, `dst_ld` elements apart in memory.
void shrink_rows(const float* src, int64_t src_ld, int64_t rows, int64_t n, void* dst, int64_t dst_ld,
                 Dtype type, bool stream);
// The upper and the lower halves of rows of float32 values, and back: bits, not roundings.
void split_rows(const float* src, int64_t src_ld, int64_t rows, int64_t n, uint16_t* upper, uint16_t* lower,
                int64_t dst_ld);
void join(const uint16_t* upper, const uint16_t* lower, int64_t n, float* dst);
void flush_stream();  // after the last `stream` of a thread

}  // namespace upweave::cpu
