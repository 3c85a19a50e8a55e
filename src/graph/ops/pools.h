#pragma once
#include "graph/operation.h"

namespace upweave {

// What avg_pool, max_pool and min_pool say, one extent for each spatial axis.
struct PoolAttrs {
  Shape window;
  Shape stride;  // the window unless said

  bool tiles() const { return stride == window; }  // windows neither overlap nor leave gaps
};

PoolAttrs pool_attrs(const Node& node, size_t spatial);
// The same of a node whose shape is known.
inline PoolAttrs pool_attrs(const Node& node) { return pool_attrs(node, spatial_rank(node.shape)); }

}  // namespace upweave
