#pragma once
// Where a move (cat, pad, crop, upsample, pixel_shuffle, pixel_unshuffle) finds the elements of its result,
// in one place for its row and the engines.
#include <array>

#include "graph/ops/border.h"

namespace upweave {

// What pad says, one extent for each spatial axis.
struct PadAttrs {
  Shape begin, end;
  Border border;
  double value;  // of zeros, 0 unless said
};
PadAttrs pad_attrs(const Node& node, size_t spatial);

// What crop takes of a value of `shape`: from `begin` on `extent` elements of each axis, channels first.
struct CropAttrs {
  Shape begin, extent;
};
CropAttrs crop_attrs(const Node& node, const Shape& shape);

// What upsample says.
struct UpsampleAttrs {
  Shape scale;
  bool linear, corners;
};
UpsampleAttrs upsample_attrs(const Node& node, size_t spatial);

// The factors of pixel_shuffle and pixel_unshuffle.
Shape shuffle_factors(const Node& node, size_t spatial);

// Output o along an axis of a linear upsampling is (1 - weight) x[lo] + weight x[hi], weight = part / whole.
struct LinearTap {
  int64_t lo, hi, part, whole;
  double weight() const { return static_cast<double>(part) / static_cast<double>(whole); }
};
LinearTap linear_tap(int64_t o, int64_t extent, int64_t scale, bool corners);

// The map from places of the result to places of the operands, of all moves but the linear upsampling. All
// places have a channel and three spatial axes, the missing ones first and of extent 1.
class Move {
 public:
  using Place = std::array<int64_t, 4>;  // channel, depth, height, width
  struct Source {
    size_t operand;
    Place at;  // not read if `outside`
    bool outside;
  };
  Move(const Node& node, const std::vector<Shape>& operands);

  Source source(const Place& to) const;
  // Along a row of the result: elements `period` apart lie `step` apart in their operand. The ends that pad
  // adds are apart from this: `inside` is the row without them.
  int64_t period() const { return op_ == Op::kUpsample || op_ == Op::kPixelShuffle ? step_[3] : 1; }
  int64_t step() const { return op_ == Op::kPixelUnshuffle ? step_[3] : 1; }
  std::pair<int64_t, int64_t> inside(int64_t width) const {
    if (op_ != Op::kPad) return {0, width};
    return {-begin_[3], extents_[0][3] - begin_[3]};
  }
  double value() const { return value_; }  // of what is outside

 private:
  int64_t along(size_t axis, int64_t o) const;  // of pad, crop and upsample; -1: outside

  Op op_;
  std::vector<Place> extents_;  // of the operands
  Place step_ = {1, 1, 1, 1};   // the factor of upsample and the shuffles
  Place begin_ = {0, 0, 0, 0};  // what crop leaves out, or minus what pad adds
  Border border_ = Border::kZeros;
  double value_ = 0;
};

}  // namespace upweave
