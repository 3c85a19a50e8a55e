#include "engine/cpu/conv/dilated.h"

#include <fmt/format.h>

namespace upweave::cpu {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// The positions d*i + residue of [lo, lo + extent), as an interval of i.
struct Interval {
  int64_t lo, extent;
};
Interval among(int64_t lo, int64_t extent, int64_t d, int64_t residue) {
  const int64_t first = ceil_div(lo - residue, d);
  return {first, floor_div(lo + extent - 1 - residue, d) - first + 1};
}

}  // namespace

Extents residue_periods(const ConvShape& shape) {
  Extents period = {1, 1, 1};
  for (int axis = 0; axis < 3; ++axis) {
    if (shape.stride[axis] == 1 && shape.step[axis] == 1 && shape.kernel[axis] > 1)
      period[axis] = shape.dilation[axis];
  }
  return period;
}

ConvShape residue_shape(const ConvShape& shape, const Extents& period, const Extents& residue) {
  ConvShape s = shape;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t d = period[axis], e = residue[axis];
    if (d == 1) continue;
    s.dilation[axis] = 1;
    s.padding[axis] = floor_div(e + shape.padding[axis], d);
    s.in[axis] =
        std::max<int64_t>(0, ceil_div(shape.in[axis] - (e + shape.padding[axis] - d * s.padding[axis]), d));
    s.out[axis] = std::max<int64_t>(0, ceil_div(shape.out[axis] - e, d));
  }
  return s;
}

int64_t DilatedConv::input_residue(int axis, int64_t e) const {
  const int64_t at = e + padding_[axis];
  return at - floor_div(at, period_[axis]) * period_[axis];
}

bool DilatedConv::outputs_of(const Box& output, const Extents& e, Box* own) const {
  *own = output;
  for (int axis = 0; axis < 3; ++axis) {
    if (period_[axis] == 1) continue;
    const Interval of = among(output.lo[axis], output.extent[axis], period_[axis], e[axis]);
    if (of.extent <= 0) return false;
    own->lo[axis] = of.lo, own->extent[axis] = of.extent;
  }
  return true;
}

Extents DilatedConv::tile_quantum() const {
  Extents quantum = kernels_[0]->tile_quantum();
  for (int axis = 0; axis < 3; ++axis) quantum[axis] *= period_[axis];
  return quantum;
}

Box DilatedConv::input_box(const Box& output) const {
  Extents first = {0, 0, 0}, end = {1, 1, 1};
  bool any = false;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const Extents e = residue(static_cast<int64_t>(i));
    Box own;
    if (!outputs_of(output, e, &own)) continue;
    const Box box = kernels_[i]->input_box(own);
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t rho = input_residue(axis, e[axis]), lo = box.lo[axis] * period_[axis] + rho,
                    past = lo + (box.extent[axis] - 1) * period_[axis] + 1;
      first[axis] = any ? std::min(first[axis], lo) : lo;
      end[axis] = any ? std::max(end[axis], past) : past;
    }
    any = true;
  }
  return {first, {end[0] - first[0], end[1] - first[1], end[2] - first[2]}};
}

void DilatedConv::compute(const void* packed, const ConvInput& input, const ConvOutput& output,
                          void* scratch) const {
  const Extents in_pitch = pitch_of(input), out_pitch = pitch_of(output);
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const Extents e = residue(static_cast<int64_t>(i));
    ConvInput from = input;
    ConvOutput to = output;
    if (!outputs_of(output.box, e, &to.box)) continue;
    const float* data = static_cast<const float*>(input.data);
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t d = period_[axis], rho = input_residue(axis, e[axis]);
      from.pitch[axis] = d * in_pitch[axis];
      to.pitch[axis] = d * out_pitch[axis];
      if (d == 1) continue;
      const Interval inputs = among(input.box.lo[axis], input.box.extent[axis], d, rho);
      from.box.lo[axis] = inputs.lo, from.box.extent[axis] = inputs.extent;
      data += (d * inputs.lo + rho - input.box.lo[axis]) * in_pitch[axis];
      to.data += (d * to.box.lo[axis] + e[axis] - output.box.lo[axis]) * out_pitch[axis];
    }
    from.data = data;
    kernels_[i]->compute(packed, from, to, scratch);
  }
}

std::string DilatedConv::describe() const {
  std::string apart;
  for (const int64_t d : period_) apart += fmt::format("{}{}", apart.empty() ? "" : "x", d);
  return fmt::format("{}, on outputs {} apart", kernels_[0]->describe(), apart);
}

}  // namespace upweave::cpu
