#pragma once
// One row per operation: its id and family, text form, shape rule, float64 maths and error bound. Adding an
// operation means adding a file to ops/ (or a row to one); the build finds it.
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace upweave {

// One argument of a stage, in text order. Tensor arguments become operands (Node::in), the others attributes.
struct Arg {
  enum class Kind {
    kTensor,   // kernel, @label; by name (bias=b) when `named`
    kOperand,  // a tensor or a number; a number is the attribute `name`
    kValues,   // one or more values, @a @b: an operand for each; the last argument of its operation
    kInts,     // extents: 2 or 2x1x2, behind `prefix`: s2x1
    kSlices,   // 1:-1 or :x2:8, kept as a word; by name (channels=0:8) when `named`
    kReal,     // a number; by name (eps=1e-5) when `named`
    kWord,     // one of `words`
    kFlag,     // its own name, present or not
  };
  std::string_view name;
  Kind kind;
  bool required = false;
  std::string_view prefix = {};              // kInts: "s" of s2; empty: a bare number
  bool single = false;                       // kInts: one number, not one an axis
  bool named = false;                        // kTensor, kReal: written as name=value
  double fallback = 0;                       // kReal of a pointwise function: its value unless said
  std::vector<std::string_view> words = {};  // kWord
};

// A float64 tensor of the reference engine; `err`, when tracked, bounds |float result - value| elementwise.
struct Tensor {
  Shape shape;
  std::vector<double> data;
  std::vector<double> err;
};
using Inputs = std::span<const Tensor* const>;  // nullptr where an optional operand is absent

// How an engine rounds: `unit` per operation. A sum of n products is off by (4 + 2 sqrt(n)) unit sum|a||b| at
// most, and by what `product` adds: eight deviations of a float sum's error (docs/math.md).
struct Rounding {
  double unit = 0x1p-24;
  double product = 0x1p-24;         // relative error of one product's operands (2^-11 for TF32-like modes)
  double largest = 0x1.fffffep127;  // beyond it an engine overflows
  double tiny = 0x1p-149;  // what an operation may lose below the normal range: float32's smallest step
  bool tiles = false;      // an error may be the largest of a transform's tile, of 4 outputs of each phase
};

// What part of its operand one output element must see: where a pass has to end.
enum class Reach {
  kPoint,     // itself
  kChannels,  // all channels of a voxel
  kWindow,    // a pooling window
  kRow,       // whole trailing axes of one (n, c)
  kSpace,     // all of space, of a channel or a group, in one sample
  kBatch,     // all of space in all samples
};

struct Range {
  double lo, hi;
};

struct Operation {
  Op id;
  Family family;
  std::string_view name;
  std::string_view summary = {};
  std::string_view example = {};
  std::vector<Arg> args = {};
  // Checks operands and attributes; throws Error naming the parameter and its value.
  Shape (*shape)(const Graph& graph, const Node& node) = nullptr;
  // Pointwise: the result of an element x, by which the reference and every engine's slow road go. `a` and
  // `b` are the node's numbers; where operand 1 is a tensor, `a` is its element. snake's `b` is beta + eps.
  double (*value)(double x, double a, double b) = nullptr;
  void (*evaluate)(const Node& node, Inputs in, Tensor& out) = nullptr;
  void (*bound)(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) = nullptr;
  Reach (*reach)(const Node& node) = nullptr;
  double ops_per_element = 1;  // of the larger of input and output, for the cost model
  // The shape of the parameter in operand `slot` when nobody gave one; default: a value per channel.
  Shape (*param_shape)(const Graph& graph, const Node& node, size_t slot) = nullptr;
  // Facts that laws use. monotone: non-decreasing in operand 0. range: where all results lie.
  bool (*monotone)(const Node& node) = nullptr;
  std::optional<Range> (*range)(const Node& node) = nullptr;
  bool internal = false;    // made by rewrites; can be written but is not listed
  bool of_weights = false;  // operand 0 is a parameter of any rank (or statistics), not an N C ... value
};

const Operation* find_operation(std::string_view name);  // nullptr if there is none
const Operation& operation(Op id);
const std::vector<const Operation*>& operations();  // all, by name

// --- Helpers that rows share -------------------------------------------------------------------------------
const Shape& shape_of(const Graph& graph, const Node& node, size_t slot);
size_t spatial_rank(const Shape& shape);  // of an N C ... shape
// The attribute `name`, one value per spatial axis: a single number means all axes; `fallback` if absent.
Shape per_axis(const Node& node, std::string_view name, size_t spatial, int64_t fallback);
// The operand as it is broadcast against `shape`: each extent 1 or shape's. A vector is a value per channel.
Shape broadcast_shape(const Shape& operand, const Shape& shape, std::string_view what);
// Row-major strides, 0 where the broadcast extent is 1.
Shape broadcast_strides(const Shape& operand, const Shape& shape);
Shape row_major(const Shape& shape);
// The numbers of a pointwise node in text order, a flag as 0 or 1: slope; lo, hi; the number of `add 1`; b
// alone where a is a tensor's.
struct Numbers {
  double a = 0, b = 0;
};
Numbers numbers(const Node& node);
// `evaluate` of pointwise rows.
void evaluate_pointwise(const Node& node, Inputs in, Tensor& out);
// Calls f(index, offset) for every element of `shape` in row-major order.
template <class F>
void for_each_index(const Shape& shape, F&& f) {
  const int64_t n = count(shape);
  Shape index(shape.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    f(index, i);
    for (size_t a = shape.size(); a-- > 0;) {
      if (++index[a] < shape[a]) break;
      index[a] = 0;
    }
  }
}

// Calls f(i, x, y) for each element of a pointwise node's result: the offsets of its operands; y is -1 where
// there is one operand.
template <class F>
void for_each_operands(Inputs in, const Tensor& out, F&& f) {
  const bool two = in.size() > 1 && in[1];
  const Shape sx = broadcast_strides(in[0]->shape, out.shape);
  const Shape sy = two ? broadcast_strides(in[1]->shape, out.shape) : Shape(out.shape.size(), 0);
  for_each_index(out.shape, [&](const Shape& index, int64_t i) {
    int64_t x = 0, y = 0;
    for (size_t axis = 0; axis < index.size(); ++axis) {
      x += index[axis] * sx[axis];
      y += index[axis] * sy[axis];
    }
    f(i, x, two ? y : -1);
  });
}

}  // namespace upweave
