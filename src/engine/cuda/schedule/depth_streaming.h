#pragma once
// Persistent blocks that stream through the depth, for a convolution of stride two along the width whose
// outputs are stored, or summed over space. A block keeps the weights of its part of the (depth, height)
// phases and goes through the depth of one column of tiles after another; of each tile only the plane that
// the one before did not read is loaded, into a ring.
//
// The 64 rows of a subtile are 4 lines of 16 windows, of each line first the 8 even ones, then the 8 odd
// ones: a thread has rows r and r + 8, so both width phases of two neighbouring windows, which are four
// outputs side by side. For a shift by an even number of windows even rows read even places, for an odd one
// odd places. So shared memory has each line twice: as pairs that begin with an even place, and as pairs that
// begin with an odd one. In both, eight-row groups are the same distance apart, as wgmma needs them.
#include <optional>

#include "engine/cuda/schedule/partition.h"

namespace upweave::cuda {

struct TensorView;

class DepthStreaming final : public Schedule {
 public:
  using Schedule::Schedule;

  struct ColumnPart : Part {
    int depth = 0, line = 0;        // the lowest shifts of its taps
    int planes = 1;                 // that they read
    int first_slot = 0, slots = 0;  // of a sample's parts, one for each block that meets the sample
  };
  // Windows of the copy two by two, w = first + 2 pair + parity, as a tile has them in shared memory.
  struct PairView {
    int first = 0;  // the lowest shift along the width that it serves; others are multiples of two away
    int pairs = 0;  // of a line; 0: no tap needs this view
    int at = 0;     // bytes from a plane's first
  };

  std::vector<ColumnPart> parts;
  int lines = 1, width = 16, across = 1;  // a tile's extent in h and w; tiles along the width
  int buffers = 1;                        // planes in shared memory
  int ping_pong = 1;                      // sets of warpgroups that have the tensor cores in turn
  int planes = 1;                         // that the taps of one depth read, of the part with most
  int run = 1;                            // depths of a column that a block goes through in a row
  bool side_by_side = false;      // blocks go through the volume together; otherwise each has its share
  int tile_lines = 1;             // of a plane that a tile has in shared memory: its own and those around
  std::array<PairView, 2> views;  // for even and for odd shifts along the width
  int lines_before = 0;           // of zeros that the views begin with
  int part_bytes = 0;             // a plane's rows of one channel block, hi or lo, in shared memory
  int staging = 0;                // bytes a warp in which outputs wait for TMA; 0: none
  std::vector<int> order;         // which step is at each place of the packed weights
  std::vector<int> shared_taps;   // per group of phases: how many of its steps both width phases have

  int jobs_of_sample() const { return tiles / conv.batch; }
  int sample_slots() const { return parts.back().first_slot + parts.back().slots; }
  // Jobs and the blocks that share them.
  struct Share {
    int jobs, blocks;
  };
  // Blocks go through the volume side by side, so that what they write lies close together and what they read
  // is still in the cache; or each through its share, if otherwise some had much more to do than others.
  void go_side_by_side(const std::vector<Share>& shares);
  // Slots for the parts of every block that can meet a sample, if `samples` of them are shared by so many
  // blocks of each part; beside what there is already.
  void reserve_slots(const std::vector<int>& blocks, int samples);
  std::vector<TensorView> tensor_views(const Prepared& p) const;  // the copy, even and odd; and the output
  // The kernel's text where `role` declares the part for which the block works, the block's number, of how
  // many, and their jobs (`partition`, `block`, `blocks`, `job0`, `jobs`); empty: all of the grid does all
  // tiles.
  std::string role_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e, const std::string& g,
                        bool fma, const std::string& role) const;

  int tile_half() const override { return shared_bytes_of(conv.blocks, part_bytes); }
  int weight_shared() const override { return resident_weights(conv, parts_of(parts)); }
  int staged_bytes() const override { return staging * warpgroups * 4; }
  CopyOrder copy_order() const override { return CopyOrder::kWholePlanes; }
  bool one_scale() const override { return conv.weights_lo; }
  bool overlaps() const override { return true; }
  double seconds_a_voxel() const override;
  EpilogueForm epilogue_form() const override;
  int64_t partials() const override { return int64_t{conv.batch} * sample_slots() * warpgroups; }
  TileConstants constants() const override;
  std::string products_text(const std::string& g) const override;
  std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                          const std::string& g, bool fma) const override {
    return role_text(l, fusion, e, g, fma, "");
  }
  KernelForm kernel_form() const override;
  int fma_blocks(int) const override { return kernel_form().blocks; }
  std::vector<Launch> launches(const Launch& one, const Work& work, const Prepared& p) const override;
  const char* note() const override { return ", weights stay, planes go through a ring"; }

 protected:
  std::string own_constants(const Prepared& p) const override;
  std::string own_tables(const std::string& g) const override { return part_tables(g, parts_of(parts)); }
  std::vector<int> stream() const override { return order; }
  std::array<int64_t, 2> weight_strides() const override;
};

// At least `least` of whose rows are useful.
std::optional<DepthStreaming> tile_depth_streaming(const Convolution& conv, const EpilogueNeeds& needs,
                                                   double least);

}  // namespace upweave::cuda
