#pragma once
// Blocks that live as long as the kernel, each with the weights of its part of the phases and with two tiles,
// one computed while the other arrives.
#include <optional>

#include "engine/cuda/schedule/partition.h"
#include "engine/cuda/schedule/row_segments.h"

namespace upweave::cuda {

class WeightStationary final : public Schedule {
 public:
  using Schedule::Schedule;

  struct TilePart : Part {
    int first_segment = 0, segments = 0;  // what its taps read
  };
  TileShape shape;
  RowSegments segments;
  std::vector<TilePart> parts;
  int ping_pong = 1;  // sets of warpgroups that have the tensor cores in turn
  static constexpr int kBuffers = 2;

  int tile_half() const override;
  int weight_shared() const override { return resident_weights(conv, parts_of(parts)); }
  bool overlaps() const override { return true; }
  EpilogueForm epilogue_form() const override;
  int64_t partials() const override { return Schedule::partials() * static_cast<int64_t>(parts.size()); }
  TileConstants constants() const override;
  std::string products_text(const std::string& g) const override;
  std::string kernel_text(const Lowering& l, const Fusion& fusion, const EpilogueText& e,
                          const std::string& g, bool fma) const override;
  KernelForm kernel_form() const override;
  const char* note() const override { return ", weights stay in shared memory"; }

 protected:
  std::vector<int64_t> segment_offsets() const override { return segments.offsets(*this); }
  std::string own_tables(const std::string& g) const override { return part_tables(g, parts_of(parts)); }
};

// At least `least` of whose rows are useful.
std::optional<WeightStationary> tile_weight_stationary(const Convolution& conv, const EpilogueNeeds& needs,
                                                       double least);

}  // namespace upweave::cuda
