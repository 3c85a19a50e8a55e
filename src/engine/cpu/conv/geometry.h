#pragma once
// Which input each output of a box reads through which tap: the arithmetic of phases, one axis at a time.
#include <vector>

#include "engine/cpu/conv/conv.h"

namespace upweave::cpu {

// Output stride*j + residue reads input step*j + shift through tap k.
struct Tap {
  int64_t k, shift;
};

struct Residue {
  std::vector<Tap> taps;  // by rising k, so by falling shift; empty where the kernel does not reach
};

struct ConvGeometry {
  explicit ConvGeometry(const ConvShape& shape);  // throws on sizes that make no sense
  std::array<std::vector<Residue>, 3> residues;   // stride[axis] of them
  Extents first_shift, last_shift;                // least and greatest over an axis' residues
  Extents stride, step;

  int64_t phases() const { return stride[0] * stride[1] * stride[2]; }
  std::array<int64_t, 3> phase(int64_t index) const;  // its residue on each axis, width fastest
};

// The outputs of one residue inside a box along one axis: output box index first + i*every reads inputs
// step*(j + i) + shift, for 0 <= i < count.
struct AxisRun {
  int64_t first, every, count, j;
};
AxisRun axis_run(const Box& box, int axis, int64_t stride, int64_t residue);
// Of a phase, on all axes; false if the box has none of its outputs.
bool phase_runs(const ConvGeometry& geometry, const Box& box, int64_t phase, AxisRun (&run)[3]);

// The first `count` outputs of a run, which all read real inputs through the same taps, [tap, tap_end) of the
// residue's; there may be none.
struct AxisPart {
  int64_t count;
  size_t tap, tap_end;
};
AxisPart next_part(const Residue& residue, const AxisRun& run, int64_t step, int64_t in);

// The inputs that `output` needs if each axis' outputs are computed in whole tiles of stride*tile.
Box input_box(const ConvGeometry& geometry, const Box& output, const Extents& tile);

// Elements between neighbours on each axis.
template <class Side>  // ConvInput or ConvOutput
Extents pitch_of(const Side& side) {
  if (side.pitch[2] != 0) return side.pitch;
  return {side.box.extent[1] * side.box.extent[2] * side.ld, side.box.extent[2] * side.ld, side.ld};
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace upweave::cpu
