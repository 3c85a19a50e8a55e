#pragma once
#include "graph/operation.h"

namespace upweave {

// The axes of an N C ... shape that a reduction (sum, mean, max, min, logsumexp) collapses.
std::vector<size_t> reduced_axes(const Node& node, const Shape& shape);

}  // namespace upweave
