#include "engine/cpu/tile/head.h"

#include <algorithm>
#include <cstring>

#include "engine/cpu/tile/finish.h"
#include "engine/cpu/tile/move.h"

namespace upweave::cpu {
namespace {

constexpr int64_t kChunk = 4096;  // floats that go through the steps at once

int64_t vectors_of(const Step& step) {
  if (step.what == Step::What::kFactors) return 3;  // center, scale, shift
  return step.memory.exists() && step.memory.dims.voxels() == 1 ? 1 : 0;
}
bool meets_elements(const Step& step) {
  return step.what == Step::What::kPointwise && step.memory.exists() && step.memory.dims.voxels() > 1;
}
int64_t chunk_positions(const ConvSource& source) {
  return std::max<int64_t>(1, kChunk / padded(source.dims.c));
}

struct Positions {
  int64_t n, d, h, w, count;
};

const float* row_of(const Memory& memory, const Bases& bases, const Positions& at) {
  const Extents& e = memory.dims.space;
  return reinterpret_cast<const float*>(memory.read(bases)) +
         (((at.n * e[0] + at.d) * e[1] + at.h) * e[2] + at.w) * memory.ld;
}

// Positions of a value as rows: where they lie, or loaded into `buffer`.
View rows_of(const Memory& memory, const Bases& bases, const Positions& at, int64_t channels, float* buffer,
             float* stage) {
  if (memory.channels_last()) return {row_of(memory, bases, at), memory.ld, 1};
  Region region{at.n, 0, channels, {}};
  region.box.lo = {at.d, at.h, at.w};
  region.box.extent = {1, 1, at.count};
  load_positions(memory, bases, region, buffer, padded(channels), stage);
  return {buffer, padded(channels), 1};
}

// Windows, one element of all of them after the other.
View pooled(const ConvSource& source, const Bases& bases, const Positions& at, float* out) {
  const int64_t ld = padded(source.dims.c);
  const Extents &window = source.window, &stride = source.stride;
  const Fn fn = source.pooling == Pooling::kAvg   ? Fn::kAdd
                : source.pooling == Pooling::kMax ? Fn::kMaximum
                                                  : Fn::kMinimum;
  for (int64_t k = 0; k < window[0] * window[1] * window[2]; ++k) {
    const int64_t i = k / (window[1] * window[2]), j = k / window[2] % window[1], l = k % window[2];
    const Positions first = {at.n, at.d * stride[0] + i, at.h * stride[1] + j, at.w * stride[2] + l, 1};
    const View x{row_of(source.memory, bases, first), stride[2] * source.memory.ld, 1};
    pointwise(k == 0 ? Fn::kCopy : fn, 0, 0, k == 0 ? x : View{out, ld, 1}, x, out, ld, at.count, ld);
  }
  if (source.pooling == Pooling::kAvg) {
    const float scale = static_cast<float>(1.0 / static_cast<double>(window[0] * window[1] * window[2]));
    pointwise(Fn::kMul, 0, 0, {out, ld, 1}, {&scale, 0, 0}, out, ld, at.count, ld);
  }
  return {out, ld, 1};
}

void copy_rows(const ConvSource& source, const Bases& bases, const PackedRows& rows, const float* vectors,
               float* scratch) {
  const int64_t c = source.dims.c, ld = padded(c), chunk = chunk_positions(source);
  float* stage = scratch;
  float* buffer = stage + kStageFloats;
  float* operand = buffer + chunk * ld;
  // Whole vectors may be written where only channels beyond the tensor's last lie behind these.
  const bool in_place =
      rows.ld % kLane == 0 && source.c0 % kLane == 0 && (c == ld || rows.ld - source.c0 == ld);
  for (int64_t r = rows.first; r < rows.end; ++r) {
    for (int64_t w = rows.from; w < rows.to; w += chunk) {
      const Positions at = {rows.n, rows.d, rows.h + r, rows.w + w, std::min(chunk, rows.to - w)};
      float* dst = reinterpret_cast<float*>(rows.dst + r * rows.row_bytes) + w * rows.ld;
      View x = source.pool ? pooled(source, bases, at, buffer)
                           : rows_of(source.memory, bases, at, c, buffer, stage);
      const bool direct = in_place && !source.steps.empty();
      float* out = direct ? dst : buffer;
      const int64_t out_ld = direct ? rows.ld : ld;
      const float* v = vectors;
      for (const Step& step : source.steps) {
        if (step.what == Step::What::kFactors) {
          affine(x, {v, 0, 1}, {v + ld, 0, 1}, {v + 2 * ld, 0, 1}, out, out_ld, at.count, ld);
        } else {
          View y{&step.a, 0, 0};
          if (meets_elements(step)) y = rows_of(step.memory, bases, at, c, operand, stage);
          if (vectors_of(step) == 1) y = {v, 0, 1};
          pointwise(step.fn, step.a, step.b, x, y, out, out_ld, at.count, ld);
        }
        v += vectors_of(step) * ld;
        x = {out, out_ld, 1};
      }
      if (direct) {
        for (int64_t p = 0; p < at.count && c != ld; ++p)
          std::fill(dst + p * rows.ld + c, dst + p * rows.ld + ld, 0.0f);
      } else if (x.row == rows.ld && c == ld) {
        std::memcpy(dst, x.p, static_cast<size_t>(at.count * ld) * sizeof(float));
      } else {
        for (int64_t p = 0; p < at.count; ++p)
          std::memcpy(dst + p * rows.ld, x.p + p * x.row, static_cast<size_t>(c) * sizeof(float));
      }
    }
  }
}

}  // namespace

int64_t head_vectors(const ConvSource& source) {
  int64_t vectors = 0;
  for (const Step& step : source.steps) vectors += vectors_of(step);
  return vectors;
}

void load_head_vectors(const ConvSource& source, const Bases& bases, int64_t n, float* vectors) {
  const int64_t c = source.dims.c, ld = padded(c);
  std::fill(vectors, vectors + head_vectors(source) * ld, 0.0f);
  for (const Step& step : source.steps) {
    if (step.what == Step::What::kFactors) {
      norm_factors(step, bases, nullptr, 0, n, 0, c, source.dims, vectors, vectors + ld, vectors + 2 * ld);
    } else if (vectors_of(step) == 1) {
      load_vector(step.memory, bases, n, 0, c, vectors);
    }
    vectors += vectors_of(step) * ld;
  }
}

bool turns(const ConvSource& source) {
  return !source.memory.channels_last() && !source.memory.split() &&
         std::ranges::none_of(source.steps, meets_elements);
}

int64_t head_scratch_floats(const ConvSource& source) {
  if (turns(source)) return turn_scratch_floats(source);
  return kStageFloats + 2 * chunk_positions(source) * padded(source.dims.c);
}

void pack_source(const ConvSource& source, const Bases& bases, const PackedRows& rows, const float* vectors,
                 float* scratch) {
  (turns(source) ? turn_rows : copy_rows)(source, bases, rows, vectors, scratch);
}

}  // namespace upweave::cpu
