#pragma once
// What a convolution's kernel takes along of its pass, and the text of that epilogue.
#include <array>
#include <string>
#include <vector>

#include "engine/cuda/lower.h"
#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

// The nodes computed in registers behind a convolution. Values before the pool exist once an output
// ("points"), values behind it once a window; a value that was reduced over channels is one number a row
// ("scalar").
struct Fusion {
  Id conv = kNone, pool = kNone;
  Id last = kNone;                                         // behind the pool, or the pool itself
  std::vector<Id> nodes;                                   // in order, the convolution first
  std::vector<bool> here, behind_pool, scalar, reduction;  // by node id
  std::vector<Id> stores;                                  // values that leave the registers
  bool whole_columns = false, one_sample = false;
  bool all_outputs = false;  // outputs that no window holds are needed too
  int store_phases = 1;

  bool holds(Id id) const { return id != kNone && here[id]; }
};

// Chooses the nodes of `pass` that follow its convolution; `pool` is the pool that may join, or kNone;
// `over_space` lets reductions over space join, whose tiles must lie in one sample; `whole_lines`: behind the
// pool only what can be made of one window after the other.
Fusion choose_fusion(const Lowering& l, const Pass& pass, Id pool, bool over_space, bool whole_lines = false);

// The text of the epilogue's parts, for a kernel whose sums are sum[phase][piece and variant][register].
struct EpilogueText {
  std::string state;   // declared before the loop
  std::string pool;    // likewise: the pool's running values
  std::string sums;    // once a group of phases, with all sums at hand
  std::string point;   // for one row of one variant and one group of phases
  std::string row;     // by line, if not empty, instead of point: for one row of all variants
  std::string window;  // for one row, after the loop
  std::string finish;  // once, at the end; in sweeps, when a sample is left
  std::string kept;    // sweeps: declared once, before all tiles
  std::string join;    // if not empty, the kernel behind, for windows whose tiles left parts
  int join_blocks = 0;
};
EpilogueText epilogue(Lowering& l, const Fusion& f, const Schedule& t, const EpilogueForm& form);

// The schedule that takes along as much of the pass as fits, and what that is; or none, and why.
std::unique_ptr<Schedule> choose_fusion_and_schedule(Lowering& l, Pass& pass, Fusion& fusion,
                                                     std::string& why);

// A convolution whose constants, products and operands are written down: all that its kernel is made of.
struct ConvKernel {
  Fusion fusion;
  std::unique_ptr<Schedule> schedule;
  Prepared prepared;
  EpilogueText text;
  int index = 0;  // of conv_0, conv_fma_0, ...

  std::string name() const { return fmt::format("G{}", index); }  // of the tiles' constants
};

// Kernels that combine the partial results of reductions, to be launched after the convolution's own.
std::vector<Launch> combine_reductions(Lowering& l, const ConvKernel& k);

}  // namespace upweave::cuda
