#pragma once
// The geometry of an ordinary convolution, in one place for its row, the laws, the plan and the engines.
#include "graph/ops/border.h"
#include "graph/ops/conv_transpose.h"

namespace upweave {

// What conv says, one extent for each spatial axis.
struct PlainConvAttrs {
  Shape stride, padding, padding_end, dilation;  // 1, 0, as padding, and 1 unless said
  int64_t groups;                                // 1 unless said
  Border border;                                 // zeros unless said
};
PlainConvAttrs plain_conv_attrs(const Node& node, size_t spatial);

// Per spatial axis: output o collects tap k of input i = o*stride - padding + k*dilation; `border` says what
// an i outside of the input is. A matmul's is that of a convolution of 1x1.
inline bool is_plain_conv(const Node& node) { return is(node, Op::kConv) || is(node, Op::kMatmul); }
struct PlainConvGeometry : ConvGeometry {
  Border border = Border::kZeros;
};
PlainConvGeometry plain_conv_geometry(const Node& node, const Shape& in, const Shape& kernel);
PlainConvGeometry plain_conv_geometry(const Graph& graph, const Node& node);  // its operands have shapes

// How many (o, k) pairs read the input, not a constant, along one axis.
int64_t plain_taps_total(const PlainConvGeometry& g, size_t axis);

// --- What both convolutions share --------------------------------------------------------------------------
// The bound of a sum of products: `evaluate` is the convolution itself, `terms` how many products meet in one
// output. Where rounding has tiles, an error may be the largest among the outputs of a `tile`.
void convolution_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding,
                       void (*evaluate)(const Node&, Inputs, Tensor&), double terms, const Shape& tile);
// The attribute `groups`, 1 unless said.
int64_t conv_groups(const Node& node);
// Throws unless what the pipeline says of the kernel (`64 k3`) is what the kernel is, and the bias has c_out
// values.
void check_conv_words(const Graph& graph, const Node& node, int64_t c_out);
// The kernel's extents that the pipeline declares, as in `64 k3`, and its output channels; throws without.
struct DeclaredKernel {
  int64_t c_out;
  Shape extents;
};
DeclaredKernel declared_kernel(const Node& node, std::string_view name, size_t spatial);

}  // namespace upweave
