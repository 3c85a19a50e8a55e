#pragma once
// The geometry of a transposed convolution, in one place for its row, the laws, the plan and the engines.
#include <array>

#include "graph/operation.h"

namespace upweave {

// Per spatial axis: output o collects every input i and tap k with o = i*stride - padding + k*dilation.
struct ConvGeometry {
  size_t spatial = 0;
  int64_t batch = 0, c_in = 0, c_out = 0, groups = 1;
  Shape in, out, kernel, stride, padding, dilation;  // one extent an axis
};

ConvGeometry conv_geometry(const Graph& graph, const Node& node);  // of a node whose operands have shapes

// How many (i, k) pairs reach output o along one axis, and how many reach all outputs.
int64_t taps_at(const ConvGeometry& g, size_t axis, int64_t o);
int64_t taps_total(const ConvGeometry& g, size_t axis);
// How many inputs tap k carries into the output.
int64_t inputs_of_tap(const ConvGeometry& g, size_t axis, int64_t k);

}  // namespace upweave
