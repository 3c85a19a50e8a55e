#pragma once
// Tiles of whole lines, for a pool that is more than one stride of the convolution: a tile's rows are those
// of `lines` lines with the gaps between them. Then windows of rows along h and w lie in one tile, and along
// d in a unit of that many tiles: they are pooled once more before they leave.
#include <optional>

#include "engine/cuda/schedule/row_segments.h"

namespace upweave::cuda {

class WholeLines final : public Schedule {
 public:
  using Schedule::Schedule;

  int lines = 0;
  std::array<int, 3> window{1, 1, 1};  // windows of rows that become one
  int whole = 0;                       // units that a block does; of the others each tile has a block
  RowSegments segments;
  int stages = 2;  // of the ring of weights

  int units() const;
  int split_units() const { return units() - whole; }
  // A column's pooled rows in shared memory: lanes that hold other columns meet other banks.
  int combined_pitch() const { return m + 5; }
  int combined_bytes() const { return conv.n * combined_pitch() * 4; }
  // Windows of a unit, in all columns.
  int combined_windows() const { return conv.n * (lines / window[1]) * (conv.axis[2].windows / window[2]); }

  int tile_half() const override {
    return shared_bytes_of(static_cast<int64_t>(segments.list.size()), segments.bytes(conv));
  }
  int weight_shared() const override { return stages * conv.stage_bytes(); }
  EpilogueForm epilogue_form() const override;
  std::array<int, 3> combine() const override { return window; }
  TileConstants constants() const override;
  std::string products_text(const std::string& g) const override;
  std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                          const std::string& g, bool fma) const override;
  KernelForm kernel_form() const override { return {whole + split_units() * window[0]}; }
  int fma_shared() const override { return std::max(Schedule::fma_shared(), combined_bytes()); }
  const char* note() const override { return ", whole lines"; }

 protected:
  std::vector<int64_t> segment_offsets() const override { return segments.offsets(*this); }
  std::string own_constants(const Prepared& p) const override;
};

// At least `least` of whose rows are useful.
std::optional<WholeLines> tile_whole_lines(const Convolution& conv, const EpilogueNeeds& needs, double least);

}  // namespace upweave::cuda
