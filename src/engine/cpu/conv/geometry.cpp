#include "engine/cpu/conv/geometry.h"

#include <algorithm>

#include "base/error.h"

namespace upweave::cpu {

ConvGeometry::ConvGeometry(const ConvShape& shape) : stride(shape.stride), step(shape.step) {
  if (shape.c_in < 1 || shape.c_out < 1 || shape.groups < 1 || shape.c_in % shape.groups != 0 ||
      shape.c_out % shape.groups != 0) {
    throw invalid("channels {} -> {} do not divide into {} groups", shape.c_in, shape.c_out, shape.groups);
  }
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t s = shape.stride[axis], dilation = shape.dilation[axis], k_end = shape.kernel[axis];
    if (s < 1 || dilation < 1 || k_end < 1 || step[axis] < 1 || (s > 1 && step[axis] > 1)) {
      throw invalid("kernel {}, stride {}, step {}, dilation {} on axis {}", k_end, s, step[axis], dilation,
                    axis);
    }
    residues[axis].resize(s);
    for (int64_t k = 0; k < k_end; ++k) {
      const int64_t at = k * dilation - shape.padding[axis];  // the residue that k reaches is at mod s
      const int64_t e = (at % s + s) % s, shift = (e - at) / s;
      residues[axis][e].taps.push_back({k, shift});
      first_shift[axis] = k > 0 ? std::min(first_shift[axis], shift) : shift;
      last_shift[axis] = k > 0 ? std::max(last_shift[axis], shift) : shift;
    }
  }
}

std::array<int64_t, 3> ConvGeometry::phase(int64_t index) const {
  return {index / (stride[1] * stride[2]), index / stride[2] % stride[1], index % stride[2]};
}

AxisRun axis_run(const Box& box, int axis, int64_t stride, int64_t residue) {
  const int64_t lo = box.lo[axis], extent = box.extent[axis];
  if (box.step[axis] != 1) {  // one residue: o = lo + stride*i
    return {0, 1, lo % stride == residue ? extent : 0, lo / stride};
  }
  const int64_t first = (residue - lo % stride + stride) % stride;
  const int64_t count = first < extent ? (extent - first + stride - 1) / stride : 0;
  return {first, stride, count, (lo + first) / stride};
}

bool phase_runs(const ConvGeometry& geometry, const Box& box, int64_t phase, AxisRun (&run)[3]) {
  const auto e = geometry.phase(phase);
  bool any = true;
  for (int axis = 0; axis < 3; ++axis) {
    run[axis] = axis_run(box, axis, geometry.stride[axis], e[axis]);
    any = any && run[axis].count > 0;
  }
  return any;
}

AxisPart next_part(const Residue& residue, const AxisRun& run, int64_t step, int64_t in) {
  AxisPart part = {run.count, 0, residue.taps.size()};
  auto input = [&](size_t tap) { return run.j * step + residue.taps[tap].shift; };
  auto outputs = [&](int64_t inputs) { return (inputs + step - 1) / step; };
  // Shifts fall: the taps that reach behind the tensor's end come first, those before its start last.
  while (part.tap < part.tap_end && input(part.tap) >= in) ++part.tap;
  while (part.tap < part.tap_end && input(part.tap_end - 1) < 0) --part.tap_end;
  // One more tap becomes real, or one is lost, this many outputs on.
  if (part.tap_end < residue.taps.size()) part.count = std::min(part.count, outputs(-input(part.tap_end)));
  if (part.tap < part.tap_end) part.count = std::min(part.count, outputs(in - input(part.tap)));
  return part;
}

Box input_box(const ConvGeometry& geometry, const Box& output, const Extents& tile) {
  Box box;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t s = geometry.stride[axis], m = tile[axis];
    const int64_t last = output.lo[axis] + (output.extent[axis] - 1) * output.step[axis];
    const int64_t j_first = output.lo[axis] / s / m * m, j_end = round_up(last / s + 1, m);
    box.lo[axis] = j_first * geometry.step[axis] + geometry.first_shift[axis];
    box.extent[axis] = (j_end - 1 - j_first) * geometry.step[axis] + 1 + geometry.last_shift[axis] -
                       geometry.first_shift[axis];
  }
  return box;
}

}  // namespace upweave::cpu
