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
//   U[pw][pd][tile][ci]        M0[pw][pd][tile][co]                       one ph: along W, then the products
//   M1[pw][id][tile][co]       M2[ph][iw][id][tile][co]                   inverse along D, then W; along H to
//   the output
#include <vector>

#include "engine/cpu/conv_block.h"
#include "engine/cpu/conv_direct.h"
#include "engine/cpu/conv_toom.h"

namespace upweave::cpu {

// Rounding errors of a transform are relative to the largest value in it. Tiles whose largest input lies
// outside of these bounds (or is not a number) and weights of a channel that do are left to direct sums:
// inside them no intermediate value overflows, and none that matters is subnormal.
constexpr float kSmallest = 0x1p-60f, kLargest = 0x1p40f;
inline bool fits(double magnitude) {
  return magnitude == 0 || (magnitude >= kSmallest && magnitude <= kLargest);
}

// A group's buffers should leave room for weights and outputs in a second-level cache of 1 MiB.
constexpr int64_t kGroupBytes = 640 << 10;
constexpr int64_t kMaxGroup = 32;  // at most 64: a bit for each tile

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
  ToomConv(const ConvShape& shape, const Extents& tile, const std::vector<bool>& direct_phases);

  int64_t channels_in() const override { return round_up(shape_.c_in, 16); }
  int64_t channels_out() const override { return round_up(shape_.c_out, 16); }
  Extents granule() const override {
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
    void* direct;
  };
  // A group of tiles, and where its inputs are.
  struct Group {
    int64_t d, h0, w0;      // tile indices
    int64_t high, wide;     // tiles
    int64_t rows, columns;  // inputs along height and width that any phase needs
    uint64_t unfit;         // bit t: tile t is left to direct sums
    int64_t tiles() const { return high * wide; }
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
  int64_t points(int64_t phase) const;
  int64_t u_step() const { return kBlockRows * channels_in() + kSkew; }
  int64_t m1_step() const { return kBlockRows * channels_out() + kSkew; }
  int64_t m2_step(int64_t tiles) const { return tiles * channels_out() + kSkew; }
  Buffers carve(float* scratch, size_t* bytes) const;
  void pack_phase(const double* taps, const std::array<const double*, 3>& g, int64_t phase, int64_t ci,
                  double* a, double* b, float* weights) const;

  void compute_group(const Call& call, const Group& group) const;
  View transform_depth(const Call& call, const Group& group, const ToomResidue& depth) const;
  View transform_height(const Call& call, const Group& group, const ToomResidue& depth,
                        const ToomResidue& height, const View& from) const;
  void multiply(const Call& call, const Group& group, const ToomResidue (&r)[3], const View& view,
                int64_t phase) const;
  void products(const float* u, int64_t rows, const float* weights, int64_t points, float* m,
                int64_t m_step) const;
  void store(const Call& call, const Group& group, const ToomResidue (&r)[3], const AxisRun (&run)[3]) const;
  uint64_t unfit_tiles(const Call& call, const Group& group) const;
  void repair(const Call& call, const Group& group, const AxisRun (&run)[3], int64_t phase) const;

  ConvShape shape_;
  Extents tile_;
  ConvGeometry geometry_;
  DirectConv direct_;
  const BlockOps& block_;
  const ToomOps& ops_;
  std::array<std::vector<ToomResidue>, 3> residues_;
  Extents max_points_ = {1, 1, 1};
  int64_t max_group_ = 1;
  // Packed: a flag (are the weights fit for transforms?), the direct kernel's form, then for each phase, each
  // ph, each panel of output channels and its points pw, pd: c_in x width.
  int64_t direct_at_ = 16, packed_floats_ = 0;
  std::vector<int64_t> phase_at_;
  std::vector<bool> direct_phase_;
};

}  // namespace upweave::cpu
