#pragma once
// What a convolution does to its input on the way in, so that it need not be stored: its head.
#include <functional>

#include "engine/cpu/tile/tile.h"
#include "plan/plan.h"

namespace upweave::cpu {

// What a head may be made of.
struct HeadNodes {
  const Graph& graph;
  const std::vector<std::vector<Id>>& users;
  const std::vector<Id>& rest;       // nodes that wait to be computed
  std::function<Memory(Id)> memory;  // where a value lies, if it does
};

// Walks up from the convolution to what is in memory: over pointwise operations that meet a number, a value a
// channel or a value in memory, norms whose statistics are complete, then at most one pool. Each must have no
// other reader. A cat in front of the convolution has several ways up. The result are the nodes on the way,
// and stage.sources; without sources it cannot be done.
std::vector<Id> take_head(const HeadNodes& nodes, Id conv, ConvStage& stage);

}  // namespace upweave::cpu
