#pragma once
// Toom-Cook convolution of a box of outputs: F(m, r) nested over the axes, each phase with its own tap counts
// r and all phases on one grid of tiles, which is anchored at output 0 so that an output's bits do not depend
// on the box.
//
// Outputs stride*j + residue of one residue are tiled by j. A group of tiles (one tile deep, several high and
// wide) goes through transforms along depth, height and width, then one small matrix product a point (tiles x
// c_in x c_out), then the inverse transforms along depth, width and height. Depth's input transform serves
// all phases of a depth residue, and height's serves all width residues. Within a point of height everything
// stays in the near caches:
//   T1[pd][row][column][ci]    T2[ph][pd][tile row][column][ci]           input, transformed along D, then H
//   U[pw][pd][tile][block][ci] M0[pw][pd][tile][co]                       one ph: along W, then the products
//   M1[pw][id][tile][co]       M2[ph][iw][id][tile][co]                   inverse along D, then W; along H to
//   the output
#include <algorithm>
#include <vector>

#include "engine/cpu/conv/block.h"
#include "engine/cpu/conv/direct.h"
#include "engine/cpu/conv/toom_fit.h"

namespace upweave::cpu {

// Tiles with a position whose channels' root of the sum of squares lies outside of these bounds (or is not a
// number), and weights of a channel that do, are left to direct sums: inside them no intermediate value
// overflows, and none that matters is subnormal.
constexpr double kSmallest = 0x1p-60, kLargest = 0x1p40;
inline bool fits(double magnitude) {
  return magnitude == 0 || (magnitude >= kSmallest && magnitude <= kLargest);
}

// A group's buffers should leave room for weights and outputs in a second-level cache of 1 MiB.
constexpr int64_t kGroupBytes = 640 << 10;
constexpr int64_t kMaxGroup = 32;

// Transformed weights outgrow the second-level cache; hardware does not follow them from page to page.
constexpr int64_t kWeightsAhead = 4096;

// Rows of neighbouring points are this many floats further apart than they need be, or their addresses would
// agree in the low 12 bits and compete for one cache set.
constexpr int64_t kSkew = 48;

struct ToomResidue {
  ToomAxis axis;
  int64_t window;  // first input of tile 0, counted from the geometry's first_shift
};

class ToomConv final : public ConvKernel {
 public:
  ToomConv(const ConvShape& shape, const Extents& tile, const std::vector<bool>& direct_phases,
           Precision precision);

  int64_t channels_in() const override { return round_up(shape_.c_in, 16); }
  int64_t channels_out() const override { return round_up(shape_.c_out, 16); }
  Extents tile_quantum() const override {
    return {shape_.stride[0] * tile_[0], shape_.stride[1] * tile_[1], shape_.stride[2] * tile_[2]};
  }
  Box input_box(const Box& output) const override { return cpu::input_box(geometry_, output, tile_); }
  size_t packed_bytes() const override { return static_cast<size_t>(packed_floats_) * sizeof(float); }
  void pack(const double* kernel, void* packed, int threads) const override;
  size_t scratch_bytes() const override;
  void compute(const void* packed, const ConvInput& input, const ConvOutput& output,
               void* scratch) const override;
  double products_per_output() const override;
  std::string describe() const override;

 private:
  struct Buffers {
    float *t1, *t2, *u, *m0, *m1, *m2, *edge;
    float *sums, *squares, *least, *most;             // of positions, and of columns of them
    float *field_sums, *field_squares, *field_least;  // of the positions that an output reads
    void* direct;
  };
  // What is known of a tile's inputs: all zero; fit for every phase's transform; to be looked at phase by
  // phase and output by output; fit for direct sums alone.
  enum class State : uint8_t { kZero, kFit, kDoubtful, kUnfit };
  struct Survey {
    State state;
    float least, root;  // least sum over channels of a position of the tensor; root of the most squares
  };
  // The outputs [first, end) of a tile on each axis.
  struct Patch {
    int64_t first[3] = {0, 0, 0}, end[3] = {0, 0, 0};
    bool empty() const { return first[0] >= end[0] || first[1] >= end[1] || first[2] >= end[2]; }
    bool operator==(const Patch&) const = default;
  };
  static Patch common(const Patch& a, const Patch& b) {
    Patch both;
    for (int axis = 0; axis < 3; ++axis) {
      both.first[axis] = std::max(a.first[axis], b.first[axis]);
      both.end[axis] = std::min(a.end[axis], b.end[axis]);
    }
    return both.empty() ? Patch{} : both;
  }
  // A group of tiles, and where its inputs are.
  struct Group {
    int64_t d, h0, w0;      // tile indices
    int64_t high, wide;     // tiles
    int64_t rows, columns;  // inputs along height and width that any phase needs
    Survey survey[kMaxGroup];
    int64_t tiles() const { return high * wide; }
    Extents tile(int64_t t) const { return {d, h0 + t / wide, w0 + t % wide}; }
  };
  // Transformed input, wherever it lies: floats between depth points, height points, tile rows and columns.
  struct View {
    const float* data;
    int64_t d, h, tile_row, column;
  };
  struct Call {
    const float* packed;
    const ConvInput& input;
    const ConvOutput& output;
    Buffers buffer;
  };

  const ToomResidue& residue(int axis, int64_t e) const { return residues_[axis][e]; }
  int64_t products(int64_t phase) const;  // of one tile and channel pair
  int64_t u_step() const { return kBlockRows * max_blocks_ * channels_in() + kSkew; }
  int64_t m1_step() const { return kBlockRows * channels_out() + kSkew; }
  int64_t m2_step(int64_t tiles) const { return tiles * channels_out() + kSkew; }
  Buffers carve(float* scratch, size_t* bytes) const;
  bool pack_limits(const double* kernel, float* base) const;
  void pack_phase(const double* taps, const std::array<const double*, 3>& g, int64_t phase, int64_t ci,
                  double* a, double* b, float* weights) const;

  void compute_group(const Call& call, const Group& group) const;
  View transform_depth(const Call& call, const Group& group, const ToomResidue& depth) const;
  View transform_height(const Call& call, const Group& group, const ToomResidue& depth,
                        const ToomResidue& height, const View& from) const;
  void multiply(const Call& call, const Group& group, const ToomResidue (&r)[3], const View& view,
                int64_t phase) const;
  void multiply_block(const float* u, int64_t rows, int64_t blocks, const float* weights, int64_t points,
                      float* m, int64_t m_step) const;
  void store(const Call& call, const Group& group, const ToomResidue (&r)[3], const AxisRun (&run)[3]) const;
  float* place(const Call& call, const AxisRun (&run)[3], const Extents& tile, const Extents& i) const;
  ToomLimits limits(const Call& call, int64_t phase) const;
  void look_at(const Call& call, Group& group) const;
  // The outputs of a tile that the box asks for.
  Patch wanted(const AxisRun (&run)[3], const Extents& tile) const {
    Patch patch;
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t at = tile[axis] * tile_[axis];
      patch.first[axis] = std::max<int64_t>(0, run[axis].j - at);
      patch.end[axis] = std::min(tile_[axis], run[axis].j + run[axis].count - at);
    }
    return patch.empty() ? Patch{} : patch;
  }
  int64_t outputs(int axis, int64_t e, int64_t tile) const;
  int64_t real_taps(int axis, int64_t e, int64_t j) const;
  bool even_enough(const Group& group, int64_t t, int64_t phase, const ToomLimits& limit) const;
  void ignore_outside(const Group& group, const float* sums, float* to) const;
  void measure_fields(const Call& call, const Group& group, int64_t phase, Extents& measured) const;
  Patch uneven_outputs(const Call& call, const Group& group, int64_t t, int64_t phase,
                       const ToomLimits& limit) const;
  void unfit_outputs(const Call& call, const Group& group, int64_t phase, Extents& measured,
                     Patch* patches) const;
  void clear(const Call& call, const AxisRun (&run)[3], const Extents& tile, const Patch& patch) const;
  void sum_directly(const Call& call, const AxisRun (&run)[3], const Extents& tile, const Patch& patch,
                    int64_t phase) const;

  ConvShape shape_;
  Extents tile_;
  ConvGeometry geometry_;
  DirectConv direct_;
  const BlockOps& block_;
  const ToomOps& ops_;
  std::array<std::vector<ToomResidue>, 3> residues_;
  Extents max_points_ = {1, 1, 1};
  int64_t max_blocks_ = 1;                    // of taps along width
  std::vector<int64_t> block_at_, no_skips_;  // where each block's channels are, in a row of U
  int64_t max_group_ = 1;
  // Packed: a flag (are the weights fit for transforms?), what least^2 over most squares must be for a tile
  // that is fit for all phases, each phase's limits; the direct kernel's form; then for each phase, each ph,
  // each panel of output channels and its points pw, pd: blocks of taps x c_in x width.
  static constexpr int64_t kLimitsAt = 2, kLimitFloats = 9;
  int64_t direct_at_ = 0, packed_floats_ = 0;
  bool strict_;
  std::vector<int64_t> phase_at_;
  std::vector<bool> direct_phase_;
};

}  // namespace upweave::cpu
