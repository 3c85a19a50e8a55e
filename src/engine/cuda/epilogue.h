#pragma once
// The text between a convolution's sums and memory.
#include <map>
#include <string>

#include "engine/cuda/fusion.h"
#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

// The text of the epilogue's parts, for a kernel whose sums are sum[phase][subtile and position][register].
struct EpilogueText {
  std::string state;    // declared before the loop
  std::string pool;     // likewise: the pool's running values
  std::string sums;     // once a group of phases, with all sums at hand
  std::string point;    // for one row of one position and one group of phases
  std::string row;      // by line, if not empty, instead of point: for one row of all positions
  std::string window;   // for one row, after the loop
  std::string finish;   // once, at the end; or when a sample is left
  std::string kept;     // declared once, before all tiles of a block
  std::string combine;  // if not empty, the kernel behind, for windows whose tiles left parts
  int combine_blocks = 0;
};
// Where the tiles' parts of each reduction over space lie in the workspace.
using Partials = std::map<Id, int64_t>;
Partials reserve_partials(Lowering& l, const Fusion& f, const Schedule& t);

EpilogueText epilogue(Lowering& l, const Fusion& f, const Convolution& conv, const EpilogueForm& form,
                      const Partials& partials);

}  // namespace upweave::cuda
