#pragma once
// A transposed convolution as matrix products on tensor cores: its axes, channels, phases and taps. Pure
// arithmetic on the host; the kernels get it as constants.
//
// Per axis, outputs are o = P J + s u + e: window J, position in it u < f = P / s, phase e < s. Tap k reaches
// o from the input i = f J + u + (e + padding - k dilation) / s where that division is exact. Writing i = f a
// + b splits the input into f *polyphase components* b, each a dense array over a, so that a step of J is a
// step of one row: rows are windows, and the rows of a tile for any tap are the tile's own rows moved by a
// constant.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/ops/conv_transpose.h"

namespace upweave::cuda {

struct Axis {
  int in = 1, kernel = 1, stride = 1, padding = 0, dilation = 1, out = 1;
  int window = 1;      // P: the pool's window, or the stride
  int f = 1;           // P / stride
  int once = 1;        // positions u whose sums are in registers at once: f, or 1
  int phases = 1;      // s u + e over the others: stride, or P
  int windows = 1;     // how many J
  int stored = 1;      // how many a of each component lie in memory
  int lo = 0, hi = 0;  // the shifts a - J that taps need
  int pitch = 1;       // rows from one a to the same a of the next line, in units of the next axis
};

struct Step {                             // one tap of one block of channels
  int block = 0;                          // of channels
  std::array<int, 3> tap{};               // k
  std::vector<std::array<int, 3>> delta;  // per position: i - f J per axis
};

// What follows a convolution in its kernel, and the chip it runs on, as far as a schedule must respect them.
struct EpilogueNeeds {
  std::array<int, 3> pool{1, 1, 1};  // window of the pool behind the convolution; 1: none
  std::array<int, 3> rest{1, 1, 1};  // windows that a second pool makes one of, if one follows
  bool input_lo = false, weights_lo = false;
  bool whole_columns = true;  // all of c_out in one tile: something reduces over channels
  bool all_outputs = false;   // also those that floor division leaves out of the pool's windows
  bool one_sample = false;    // a tile lies in one sample: something reduces over space
  int shared_limit = 227 << 10;
  int store_phases = 1;  // phases along the width whose sums live at once, to be stored together
  bool pooled = false;   // a pool's running values live beside them
  bool wgmma = true;     // operands come from shared memory; mma.sync has them in registers too
  bool reduces = false;  // something reduces over space
  int multiprocessors = 132;
  bool mixes_samples = false;  // lines of several samples may share a tile: only pooled values leave it
  bool pool_leaves = false;    // the pool's values are stored, and nothing else is made of them here
  bool stores = true;          // outputs, not only what they are reduced to
  bool own_copy = false;       // no other kernel reads the same copy of the input in another form
  bool float_rows = false;  // what is stored is one float32 value of all channels, in rows of whole 16 bytes

  bool exact() const { return input_lo || weights_lo; }  // more than one product a term
};

// The fp16 copy of the input: [component][channel block][row][ck], rows flattened over (n, a_d, a_h, a_w)
// with shared gaps of zeros between lines, planes and samples, so that a shift never meets foreign data.
struct InputCopy {
  int plane = 8;      // rows from a_d to a_d + 1, a multiple of 8
  int64_t rows = 0;   // of one component and block
  int guard = 8;      // zero rows before and after them, a multiple of 8
  int64_t spare = 0;  // rows before those, for other values
};
// More shared memory than any chip has. What is beyond it is all alike, so that sums of bytes stay in 32
// bits.
inline constexpr int64_t kMostSharedBytes = int64_t{1} << 26;
inline int shared_bytes_of(int64_t count, int64_t bytes) {
  return static_cast<int>(std::min(count * bytes, kMostSharedBytes));
}

inline constexpr int64_t kMaxRows = int64_t{1} << 30;  // of the copy: places are 32-bit numbers

struct Convolution {
  std::array<Axis, 3> axis;  // d, h, w; missing ones have extent 1
  int batch = 1, c_in = 1, c_out = 1;
  bool input_lo = false, weights_lo = false;
  int ck = 16, blocks = 1;        // channels of a row, and how many such rows make all of c_in
  int n = 16, column_blocks = 1;  // columns of a block's tile
  int components = 1;
  int positions = 1;  // in registers at once
  int store_phases = 1;
  std::vector<std::array<int, 3>> phases;  // e of each; the width's run fastest
  std::vector<Step> steps;                 // in the order of use
  std::vector<int> phase_begin;            // groups of phase c: [phase_begin[c], phase_begin[c + 1])
  std::vector<int> group_begin;            // steps of group g
  int group_max = 1;

  bool exact() const { return input_lo || weights_lo; }
  int products() const { return 1 + input_lo + weights_lo; }  // of a term
  int row_bytes() const { return ck * 2; }
  int step_bytes() const { return n * ck * 2 * (weights_lo ? 2 : 1); }
  int stage_bytes() const { return step_bytes() * group_max; }
  int copy_planes() const { return components * blocks * (input_lo ? 2 : 1); }
  int64_t stream_bytes() const { return static_cast<int64_t>(steps.size()) * step_bytes() * column_blocks; }
  int64_t weight_columns() const;  // columns of all taps, whose extremes packing looks at
  // Groups of phases that are stored together, and the steps of one: first, end.
  int phase_groups() const { return static_cast<int>(phases.size()) / store_phases; }
  std::array<int, 2> steps_of(int phase_group) const;
  int most_groups() const;           // of one phase
  InputCopy copy_by_sample() const;  // rows in the order of the input's
};

// The convolution with its steps listed; or false, and `why` it must go the general way.
bool describe_conv(const ConvGeometry& geometry, const EpilogueNeeds& needs, Convolution& conv,
                   std::string& why);
// Columns twice as wide; false if there are not so many.
bool widen(Convolution& conv);
// One position of an axis after the other: fewer sums at once. False if there are not several.
bool serialize(Convolution& conv);
// Steps: phase by phase, tap by tap, block by block; and the groups that they are promoted in.
void list_steps(Convolution& conv);

}  // namespace upweave::cuda
