#pragma once
// Tiles by line, for a convolution in the plane with a pool behind it. Rows run over (line of windows,
// sample, window) instead of (sample, line, window): all rows of a tile have the same line, so that
//   - a tap that reaches beyond the first or the last line of the input is left out, not multiplied with
//     zeros, and there are no gaps between samples;
//   - the rows that the taps of one kernel line read are one run of the copy, which can be streamed as the
//     weights are. So a tile needs little shared memory, the hi and lo of `strict` included, and its first
//     rows arrive while the tile before is computed.
// In the axes of Convolution: depth is the line, height the sample (one tap, no pool), and there is one
// batch. Each group of steps is one line of taps.
#include <optional>

#include "engine/cuda/schedule/row_segments.h"

namespace upweave::cuda {

class LineByLine final : public Schedule {
 public:
  using Schedule::Schedule;

  // What one launch does of the tiles, from the first to the end in line_order.
  struct LineLaunch {
    int first = 0, end = 0;
    int plain_waves = 0;                       // in which block b takes the b-th of the next tiles
    std::vector<std::vector<int>> last_tiles;  // per block: its tiles in the waves after those

    size_t last_waves() const;  // for which every block has a list
  };
  // Pooled float32 values of a pipeline whose output has 16 bits an element: of the first own_lines lines in
  // the output's memory, of the others in the copy's planes, `samples` of all samples in each.
  struct Divided {
    int lines = 0, width = 0, own_lines = 0, samples = 0;
  };

  RowSegments segments;         // per group: one for each component of the width
  int stages = 2;               // of the ring of weights
  std::vector<int> line_shift;  // per group: the line that it reads, counted from the tile's window
  std::vector<int> line_order;  // lines of windows: those of a launch together, most work first
  int launched = 1;             // blocks, each for many tiles
  std::vector<LineLaunch> parts;
  bool pool_in_memory = false;  // running values of the pool lie where the pooled ones will
  std::optional<Divided> divided;
  static constexpr int kBuffers = 2;

  int lines_at(int window, int phase) const;            // groups of a phase that meet the input
  std::vector<int> launch_numbers(size_t which) const;  // the kernel's parameter LineLaunch

  int tile_half() const override { return shared_bytes_of(conv.axis[2].f, segments.bytes(conv)); }
  int weight_shared() const override { return stages * conv.stage_bytes(); }
  CopyOrder copy_order() const override { return CopyOrder::kByLine; }
  bool one_scale() const override { return conv.weights_lo; }
  double row_steps() const override;
  EpilogueForm epilogue_form() const override;
  int64_t partials() const override { return int64_t{launched} * warpgroups; }
  bool stores_blocks() const override { return true; }
  // Half of the pooled values fit where the output will be. The others take the place of input that nobody
  // reads any more: a first launch does half of the lines, and the second stores over what only the first has
  // read. False if that is no less than memory of their own. Tiles may have other lines and windows beside
  // these, whose outputs no window holds.
  bool divide(int64_t lines, int64_t width) override;
  TileConstants constants() const override;
  std::string products_text(const std::string&) const override { return ""; }
  std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                          const std::string& g, bool fma) const override;
  KernelForm kernel_form() const override;
  int fma_blocks(int) const override { return launched; }
  std::vector<Launch> launches(const Launch& one, const Work& work, const Prepared& p) const override;
  const char* note() const override {
    return parts.size() > 1 ? ", line by line in two launches" : ", line by line";
  }

 protected:
  std::vector<int64_t> segment_offsets() const override { return segments.offsets(*this); }
  std::string own_constants(const Prepared& p) const override;
  std::string own_tables(const std::string& g) const override;
};

std::optional<LineByLine> tile_line_by_line(const ConvGeometry& geometry, const EpilogueNeeds& needs);

}  // namespace upweave::cuda
