#pragma once
// Which nodes of a pass a convolution's kernel takes along.
#include <vector>

#include "engine/cuda/lower.h"

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

// Everything of the pass that the convolution reads, directly or not; by node id.
std::vector<bool> ancestors(const Graph& graph, const Pass& pass);

}  // namespace upweave::cuda
