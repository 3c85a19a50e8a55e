#pragma once
// A way of computing a convolution in tiles: which rows of the fp16 copy a tile needs, in which order the
// kernel's weights are used, where everything lies in shared memory, and which blocks do what. Each way is a
// type of its own, with its device code in kernels/<name>_sm90.cuh:
//
//   Boxes             tiles of boxes of windows, or of rows in a row; weights go through a ring
//   WholeLines        tiles of whole lines, whose windows a second pool makes fewer
//   LineByLine        rows in the order (line, sample, window), so that taps beyond the input are left out
//   WeightStationary  blocks that keep their share of the weights for all of their tiles
//   DepthStreaming    the same, going through the depth with a ring of planes of the input
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/convolution.h"

namespace upweave::cuda {

struct EpilogueText;
struct Fusion;
struct Launch;
struct Lowering;
struct Prepared;
struct Work;
class WholeLines;

// In which order rows lie in the copy. By line, the row's depth is the height, and its height the sample.
enum class CopyOrder { kBySample, kByLine, kWholePlanes };

// What an epilogue must know of where its sums are.
struct EpilogueForm {
  const char* sum = "sum[ph][s][i / 2 * 4 + r * 2 + i % 2]";  // at (ph, i), with its scale still in
  int windows = 1;                                            // side by side that a thread has of a row
  bool recomputes = false;        // values have no registers beside the sums: each use computes them again
  bool parts_by_sample = false;   // of reductions over space, kept over many tiles; otherwise by tile
  bool parts_by_block = false;    // or one for all tiles of a block
  bool height_is_sample = false;  // CopyOrder::kByLine
  bool one_sample = false;        // all rows of a tile lie in one
  bool many_tiles = false;        // constants of columns change only with the sample
  bool row_pairs = false;         // windows side by side along the width are in rows side by side
  bool pool_in_memory = false;    // running values of the pool lie where the pooled ones will
  bool staged = false;            // outputs leave by way of shared memory and TMA
  const WholeLines* lines = nullptr;  // windows of rows are pooled once more before they leave
};

// Constants of the kernels that every schedule has, and whose value is its own.
struct TileConstants {
  bool boxes = false, by_line = false, depth_streaming = false;
  int lines = 0, width = 0, across = 1;  // of a tile, and tiles along the width
  int segments = 0, segment_rows = 8;    // runs of rows that a tile loads
  int buffers = 1, parts = 1, ping_pong = 1, stages = 3;
};

// The kernel on tensor cores, beside its text.
struct KernelForm {
  int blocks = 1;
  bool producer = false;  // a warpgroup more that has operands brought
  const char *parameters = "", *begin = "await_previous();";
};

class Schedule {
 public:
  Schedule(Convolution c, InputCopy i) : conv(std::move(c)), copy(i) {}
  Schedule(const Schedule&) = default;
  Schedule(Schedule&&) = default;
  Schedule& operator=(const Schedule&) = default;
  Schedule& operator=(Schedule&&) = default;
  virtual ~Schedule() = default;

  Convolution conv;
  InputCopy copy;
  int m = 64;                        // rows of a tile
  int warpgroups = 1, subtiles = 1;  // m = 64 * warpgroups * subtiles
  int resident = 1;                  // blocks that a multiprocessor is meant to hold
  int tiles = 1, tiles_per_plane = 1;
  bool scratch = false;  // shared memory for reductions over space, beside the tiles

  // --- Memory
  virtual int tile_half() const = 0;  // bytes of the tile's hi, or of its lo
  virtual int weight_shared() const = 0;
  virtual int staged_bytes() const { return 0; }
  int tile_shared() const { return (tile_half() * (conv.input_lo ? 2 : 1) + 1023) / 1024 * 1024; }
  int scratch_bytes() const { return scratch ? warpgroups * 4 * conv.n * 12 : 0; }
  int shared_bytes() const;
  int64_t plane_bytes() const { return (copy.spare + copy.rows + 2 * copy.guard) * conv.row_bytes(); }
  int64_t copy_bytes() const { return plane_bytes() * conv.copy_planes(); }
  unsigned convert_blocks() const;  // of the pre-pass that makes the copy
  virtual CopyOrder copy_order() const { return CopyOrder::kBySample; }
  // Whether hi and lo should have one scale, so that their products meet in one sum.
  virtual bool one_scale() const { return false; }

  // --- Cost
  double efficiency() const;                            // useful rows over rows computed
  virtual double row_steps() const;                     // rows multiplied, over all steps and positions
  virtual bool overlaps() const { return false; }       // epilogues run beside others' products
  virtual double seconds_a_voxel() const { return 0; }  // at least, where outputs are stored

  // --- What the epilogue and the plan's values ask
  virtual EpilogueForm epilogue_form() const { return {}; }
  virtual int64_t partials() const { return int64_t{tiles} * warpgroups; }  // of reductions over space
  virtual std::array<int, 3> combine() const { return {1, 1, 1}; }          // windows of which tiles make one
  virtual bool stores_blocks() const { return false; }  // pooled values may lie in blocks of 16 channels
  // Places for float32 pooled values of so many lines of so many windows in the memory of a 16-bit output
  // and of the copy; false if there are none.
  virtual bool divide(int64_t lines, int64_t width);

  // --- Text and launches
  virtual TileConstants constants() const = 0;
  std::string constants_text(const std::string& g, const Prepared& p) const;  // struct G0, tables beside it
  virtual std::string products_text(const std::string& g) const = 0;          // the function that multiplies
  // What stands between the kernel's braces; `fma` for data that fp16 cannot hold.
  virtual std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                                  const std::string& g, bool fma) const = 0;
  virtual KernelForm kernel_form() const { return {tiles}; }
  virtual int fma_blocks(int multiprocessors) const { return std::min(multiprocessors * 2, tiles); }
  virtual int fma_shared() const { return warpgroups * 4 * conv.n * 12; }
  // The launches of a run, of which `one` is the form and `work` what all of them must do.
  virtual std::vector<Launch> launches(const Launch& one, const Work& work, const Prepared& p) const;
  virtual const char* note() const { return ""; }  // for explain

 protected:
  // The constants and tables of this schedule alone.
  virtual std::string own_constants(const Prepared&) const { return ""; }
  virtual std::string own_tables(const std::string&) const { return ""; }
  virtual std::vector<int64_t> segment_offsets() const { return {}; }  // of runs of rows, in the copy
  virtual std::vector<int> stream() const { return {}; }               // steps as packed; empty: in order
  // Bytes from a step's weights to the next one's, and from hi to lo.
  virtual std::array<int64_t, 2> weight_strides() const;
};

// Chooses the schedule, or none: `why` says why the convolution must go the general way.
std::unique_ptr<Schedule> choose_schedule(const ConvGeometry& geometry, const EpilogueNeeds& needs,
                                          std::string& why);

// Row r of the copy is (n, a_d, a_h, a_w); -1s where it is a gap.
struct RowAt {
  int n, a[3];
};
RowAt row_at(const Schedule& t, int64_t row);

}  // namespace upweave::cuda
