#pragma once
// The geometry of a transposed convolution, in one place for its row, the laws, the plan and the engines.
#include <algorithm>
#include <array>

#include "graph/operation.h"

namespace upweave {

// What conv_transpose and mean_conv say, one extent for each spatial axis.
struct ConvAttrs {
  Shape stride, padding, output_padding, dilation;  // 1, 0, 0 and 1 unless said
  Shape step;                                       // 1 unless said; every so many-th output is wanted
  Shape out;                                        // the output's extents where they are said, else 0
  int64_t groups;                                   // 1 unless said
};
ConvAttrs conv_attrs(const Node& node, size_t spatial);

// Per spatial axis: output o collects every input i and tap k with o*step + padding = i*stride + k*dilation.
// A step of more than 1 is an ordinary convolution's stride: `stride` is 1 there.
struct ConvGeometry {
  size_t spatial = 0;
  int64_t batch = 0, c_in = 0, c_out = 0, groups = 1;
  Shape in, out, kernel, stride, padding, dilation, step;  // one extent an axis
  bool every_output() const {                              // also where nothing is said of steps
    return std::ranges::all_of(step, [](int64_t s) { return s == 1; });
  }
};

ConvGeometry conv_geometry(const Graph& graph, const Node& node);  // of a node whose operands have shapes

// How many (i, k) pairs reach the output along one axis.
int64_t taps_total(const ConvGeometry& g, size_t axis);
// Whether each tap is known to carry an input into the output along one axis.
bool all_taps_land(const ConvGeometry& g, size_t axis);

// Throws where the tables that engines make of the graph's convolutions would be beyond kMaxPhases or
// kMaxKernelExtents.
void check_conv_tables(const Graph& graph);

}  // namespace upweave
