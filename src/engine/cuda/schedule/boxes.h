#pragma once
// Tiles of boxes of windows, or of rows in a row, each computed by a block of its own. The weights go through
// a ring in shared memory, stage by stage.
#include <optional>

#include "engine/cuda/schedule/row_segments.h"

namespace upweave::cuda {

class Boxes final : public Schedule {
 public:
  using Schedule::Schedule;

  TileShape shape;
  RowSegments segments;
  int stages = 2;               // of the ring of weights
  bool completes_sums = false;  // strict sums are complete before anything else begins

  int tile_half() const override {
    return shared_bytes_of(static_cast<int64_t>(segments.list.size()), segments.bytes(conv));
  }
  int weight_shared() const override { return stages * conv.stage_bytes(); }
  EpilogueForm epilogue_form() const override;
  TileConstants constants() const override;
  std::string products_text(const std::string& g) const override;
  std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                          const std::string& g, bool fma) const override;

 protected:
  std::vector<int64_t> segment_offsets() const override { return segments.offsets(*this); }
};

// The best of them, if one fits.
std::optional<Boxes> tile_boxes(const Convolution& conv, const EpilogueNeeds& needs);

}  // namespace upweave::cuda
