#include "graph/operation.h"

#include <algorithm>

namespace upweave {

// Every file of ops/ defines ops_<stem>(); the build lists them.
#define UPWEAVE_OPS(stem) std::vector<Operation> ops_##stem();
#include "operations.inc"
#undef UPWEAVE_OPS

namespace {

const std::vector<Operation>& rows() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> result;
    auto append = [&](std::vector<Operation> part) { std::ranges::move(part, std::back_inserter(result)); };
#define UPWEAVE_OPS(stem) append(ops_##stem());
#include "operations.inc"
#undef UPWEAVE_OPS
    std::ranges::sort(result, {}, &Operation::name);
    return result;
  }();
  return all;
}

}  // namespace

const Operation* find_operation(std::string_view name) {
  const auto it = std::ranges::lower_bound(rows(), name, {}, &Operation::name);
  return it != rows().end() && it->name == name ? &*it : nullptr;
}

const Operation& operation(Op id) {
  static const std::vector<const Operation*> by_id = [] {
    std::vector<const Operation*> result(kOps);
    for (const Operation& op : rows()) result[static_cast<size_t>(op.id)] = &op;
    return result;
  }();
  return *by_id[static_cast<size_t>(id)];
}

const std::vector<const Operation*>& operations() {
  static const std::vector<const Operation*> all = [] {
    std::vector<const Operation*> result;
    for (const Operation& op : rows()) result.push_back(&op);
    return result;
  }();
  return all;
}

const Shape& shape_of(const Graph& graph, const Node& node, size_t slot) {
  return graph[node.in[slot]].shape;
}

size_t spatial_rank(const Shape& shape) { return shape.size() - 2; }

Shape per_axis(const Node& node, std::string_view name, size_t spatial, int64_t fallback) {
  if (!node.attrs.has(name)) return Shape(spatial, fallback);
  const Shape& given = node.attrs.ints(name);
  if (given.size() == 1) return Shape(spatial, given[0]);
  if (given.size() != spatial) {
    throw invalid("{} {} has {} extents; the value has {} spatial axes", node.op->name, to_string(given),
                  given.size(), spatial);
  }
  return given;
}

Shape broadcast_shape(const Shape& operand, const Shape& shape, std::string_view what) {
  Shape result(shape.size(), 1);
  if (operand.size() == 1 && operand[0] != 1 && shape.size() > 1) {
    if (operand[0] != shape[1]) {
      throw invalid("{} has {} values; the value it meets has {} channels", what, operand[0], shape[1]);
    }
    result[1] = shape[1];
    return result;
  }
  const size_t skip = shape.size() - std::min(shape.size(), operand.size());
  for (size_t axis = 0; axis < operand.size(); ++axis) {
    if (operand.size() > shape.size() || (operand[axis] != 1 && operand[axis] != shape[skip + axis])) {
      throw invalid("{} has shape {}, which does not broadcast to {}", what, to_string(operand),
                    to_string(shape));
    }
    result[skip + axis] = operand[axis];
  }
  return result;
}

Shape row_major(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

Shape broadcast_strides(const Shape& operand, const Shape& shape) {
  const Shape full = broadcast_shape(operand, shape, "operand");
  Shape strides = row_major(full);
  for (size_t axis = 0; axis < full.size(); ++axis) {
    if (full[axis] == 1) strides[axis] = 0;
  }
  return strides;
}

Numbers numbers(const Node& node) {
  double found[3] = {};
  size_t n = 0;
  for (const Arg& arg : node.op->args) {
    if (arg.kind == Arg::Kind::kTensor) n = 1;  // its element is a
    if (arg.kind == Arg::Kind::kFlag) found[n++] = node.attrs.flag(arg.name);
    if (arg.kind == Arg::Kind::kReal || arg.kind == Arg::Kind::kOperand)
      found[n++] = node.attrs.real_or(arg.name, arg.fallback);
  }
  return {found[0], found[1]};
}

void evaluate_pointwise(const Node& node, Inputs in, Tensor& out) {
  const auto [a, b] = numbers(node);
  const auto value = node.op->value;
  if (in.size() == 1) {
    for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = value(in[0]->data[i], a, b);
    return;
  }
  for_each_operands(in, out, [&, a = a, b = b](int64_t i, int64_t x, int64_t y) {
    out.data[i] = value(in[0]->data[x], y < 0 ? a : in[1]->data[y], b);
  });
}

}  // namespace upweave
