#pragma once
// Direct sums: each phase is a matrix product whose rows are output positions, whose columns are output
// channels and whose inner dimension is taps x input channels. Nothing is gathered: a row is a pointer into
// the input tile, and a tap is an offset that all rows share. bfloat16 tiles go the same way, two channels in
// each element, by dot products where nothing subnormal can arise from a tile's values.
#include <vector>

#include "engine/cpu/conv/block.h"
#include "engine/cpu/conv/geometry.h"

namespace upweave::cpu {

// What the lanes of a vector are: output channels; input channels, where output channels are few; channels
// that are both, where each group has one.
enum class Lanes { kOutputs, kInputs, kBoth };
Lanes direct_lanes(const ConvShape& shape);  // of float32 tiles

class DirectConv final : public ConvKernel {
 public:
  // An element of the tile is a float (pair 1), or a pair of bfloat16 channels (2).
  DirectConv(const ConvShape& shape, const BlockOps& ops, int64_t pair, Lanes lanes = Lanes::kOutputs);

  Dtype input_type() const override { return pair_ == 1 ? Dtype::kF32 : Dtype::kBF16; }
  int64_t channels_in() const override {
    return round_up(shape_.c_in, lanes_ == Lanes::kOutputs ? pair_ : 16);
  }
  int64_t channels_out() const override { return round_up(shape_.c_out, 16); }
  Extents tile_quantum() const override { return shape_.stride; }
  Box input_box(const Box& output) const override { return cpu::input_box(geometry_, output, {1, 1, 1}); }
  size_t packed_bytes() const override {
    return static_cast<size_t>(packed_floats_ + (pair_ == 2 ? kLeastFloats : 0)) * sizeof(float);
  }
  void pack(const double* kernel, void* packed, int threads) const override;
  size_t scratch_bytes() const override { return static_cast<size_t>(3 * max_taps_) * sizeof(int64_t); }
  void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
               void* scratch) const override;
  double products_per_output() const override;
  std::string describe() const override;

  // The outputs of one phase that `run` names, none of its counts 0. `output_step` are the floats between
  // neighbours of the output box on each axis. Channels beyond c_out are left alone.
  void compute_phase(const void* packed, int64_t phase, const ConvInput& input, const AxisRun (&run)[3],
                     float* output, const Extents& output_step, void* scratch) const {
    compute_phase(ops_, packed, phase, input, run, output, output_step, scratch);
  }

  // Sets the channels beyond c_out to zero.
  void clear_padding(const ConvOutput& output) const;
  int64_t taps(int64_t phase) const;

 private:
  struct Taps {  // of an axis' residue: [first, end)
    size_t first, end;
  };
  void compute_phase(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                     const AxisRun (&run)[3], float* output, const Extents& output_step, void* scratch) const;
  // Tap by tap over all of a phase's outputs that it reaches, so that its weights stay near and borders split
  // no block; the sums' bits are the same.
  bool by_taps(int64_t phase, const AxisRun (&run)[3]) const;
  void compute_by_taps(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                       const AxisRun (&run)[3], float* output, const Extents& output_step) const;
  // Positions, and how far apart they are.
  struct Rows {
    const float* in;
    float* out;
    Extents count, in_step, out_step;
  };
  static void multiply_rows(const BlockOps& ops, BlockProduct& p, const Rows& rows);
  Rows rows_of(const ConvInput& input, const Extents& pitch, const AxisRun (&run)[3], float* output,
               const Extents& output_step) const;
  Extents element_pitch(const ConvInput& input) const;
  // The outputs of `run`, all of which read real inputs through `taps`.
  void compute_part(const BlockOps& ops, const void* packed, int64_t phase, const ConvInput& input,
                    const AxisRun (&run)[3], const Taps (&taps)[3], float* output, const Extents& output_step,
                    void* scratch) const;
  float element(const double* tap, int64_t group, int64_t k, int64_t c, int64_t volume) const;
  float* pack_tap(const double* tap, int64_t group, int64_t first, int64_t columns, float* to) const;
  template <class F>
  void for_panels(F&& body) const;
  const BlockOps& ops_for(const void* packed, const ConvInput& input, const Box& output) const;

  static constexpr int64_t kLeastFloats = 16;  // a line behind the weights: what inputs may go down to

  ConvShape shape_;
  ConvGeometry geometry_;
  const BlockOps& ops_;
  int64_t pair_;
  Lanes lanes_;
  // Of one group: input channels, the elements that hold them, output channels. Channels that are both make
  // one group.
  int64_t groups_, channels_, depth_, columns_;
  // Packed: for each phase, group and panel of output channels, the taps in order, each depth x width.
  std::vector<int64_t> phase_offset_;
  int64_t packed_floats_ = 0, max_taps_ = 0;
};

}  // namespace upweave::cpu
