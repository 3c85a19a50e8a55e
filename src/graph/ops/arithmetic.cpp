#include <cmath>

#include "graph/operation.h"

// x op y, y a number, a tensor that broadcasts, or an earlier value: add, sub, mul, div, minimum, maximum.
// And prelu, whose y is a parameter.
namespace upweave {
namespace {

// The shape of two broadcast values; a parameter may not enlarge the value it meets.
Shape binary_shape(const Graph& graph, const Node& node) {
  const Shape& a = shape_of(graph, node, 0);
  if (node.in[1] == kNone) return a;
  const Shape& b = shape_of(graph, node, 1);
  if (graph[node.in[1]].of_parameters || a == b) {
    const std::string& name = graph[node.in[1]].name;
    broadcast_shape(b, a, name.empty() ? "the operand" : name);
    return a;
  }
  Shape shape = a;
  for (size_t axis = 0; axis < a.size(); ++axis) {
    if (b.size() != a.size() || (a[axis] != b[axis] && a[axis] != 1 && b[axis] != 1)) {
      throw invalid("{} of shapes {} and {}, which do not broadcast", node.op->name, to_string(a),
                    to_string(b));
    }
    if (a[axis] == 1) shape[axis] = b[axis];
  }
  return shape;
}

// E(a, ea, b, eb): how far the exact operation moves when its operands do.
template <double (*E)(double, double, double, double)>
void bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const double number = numbers(node).a;
  for_each_operands(in, out, [&](int64_t i, int64_t a, int64_t b) {
    const double y = b < 0 ? number : in[1]->data[b];
    // A number is rounded to float too.
    const double ey = b < 0 ? rounding.unit * std::fabs(y) : in[1]->err[b];
    out.err[i] = E(in[0]->data[a], in[0]->err[a], y, ey) + 2 * rounding.unit * std::fabs(out.data[i]);
  });
}

double plus(double x, double y, double) { return x + y; }
double minus(double x, double y, double) { return x - y; }
double times(double x, double y, double) { return x * y; }
double over(double x, double y, double) { return x / y; }
double lower(double x, double y, double) { return std::isnan(x) || std::isnan(y) ? x + y : std::min(x, y); }
double higher(double x, double y, double) { return std::isnan(x) || std::isnan(y) ? x + y : std::max(x, y); }
double sum_error(double, double ea, double, double eb) { return ea + eb; }
double product_error(double a, double ea, double b, double eb) {
  return std::fabs(a) * eb + std::fabs(b) * ea + ea * eb;
}
double quotient_error(double a, double ea, double b, double eb) {
  const double safe = std::fabs(b) - eb;
  if (safe <= 0) return std::numeric_limits<double>::infinity();
  return (ea + std::fabs(a / b) * eb) / safe;
}
double choice_error(double, double ea, double, double eb) { return std::max(ea, eb); }
double prelu(double x, double weight, double) { return x > 0 ? x : weight * x; }
double prelu_error(double a, double ea, double b, double eb) {
  return std::max(1.0, std::fabs(b)) * ea + (std::fabs(std::min(a, 0.0)) + ea) * eb;
}

template <double (*E)(double, double, double, double)>
Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example,
              double (*value)(double, double, double)) {
  Operation op{.id = id, .family = Family::kPointwise, .name = name};
  op.summary = summary;
  op.example = example;
  op.args = {{.name = "value", .kind = Arg::Kind::kOperand, .required = true}};
  op.shape = binary_shape;
  op.value = value;
  op.evaluate = evaluate_pointwise;
  op.bound = bound<E>;
  op.reach = [](const Node&) { return Reach::kPoint; };
  return op;
}

bool number(const Node& node) { return node.in[1] == kNone; }

}  // namespace

std::vector<Operation> ops_arithmetic() {
  Operation add = row<sum_error>(Op::kAdd, "add", "x + y", "add 1", plus);
  Operation sub = row<sum_error>(Op::kSub, "sub", "x - y", "sub bias", minus);
  Operation mul = row<product_error>(Op::kMul, "mul", "x * y", "mul scale", times);
  Operation div = row<quotient_error>(Op::kDiv, "div", "x / y", "div 2", over);
  Operation low = row<choice_error>(Op::kMinimum, "minimum", "the smaller of x and y", "minimum 0", lower);
  Operation high = row<choice_error>(Op::kMaximum, "maximum", "the larger of x and y", "maximum 0", higher);
  add.monotone = sub.monotone = low.monotone = high.monotone = [](const Node& node) {
    return !number(node) || std::isfinite(node.attrs.real("value"));
  };
  mul.monotone = div.monotone = [](const Node& node) {
    return number(node) && node.attrs.real("value") > 0 && std::isfinite(node.attrs.real("value"));
  };
  Operation rectify =
      row<prelu_error>(Op::kPrelu, "prelu", "x where x > 0, weight * x elsewhere; a weight, or one a channel",
                       "prelu weight", prelu);
  rectify.args = {{.name = "weight", .kind = Arg::Kind::kTensor, .required = true}};
  rectify.shape = [](const Graph& graph, const Node& node) {
    const Shape &x = shape_of(graph, node, 0), &weight = shape_of(graph, node, 1);
    if (weight != Shape{1} && weight != Shape{x[1]}) {
      throw invalid("{} of prelu has shape {}; it must hold 1 value, or {}", graph[node.in[1]].name,
                    to_string(weight), x[1]);
    }
    return x;
  };
  rectify.ops_per_element = 2;
  return {add, sub, mul, div, low, high, rectify};
}

}  // namespace upweave
