#include <cmath>
#include <limits>

#include "graph/operation.h"

// snake(x) = x + sin(alpha x)^2 / (beta + eps), a value of alpha and beta a channel; beta is alpha unless
// given.
namespace upweave {
namespace {

double snake(double x, double alpha, double divisor) {
  const double s = std::sin(alpha * x);
  return x + s * s / divisor;
}

Shape snake_shape(const Graph& graph, const Node& node) {
  const Shape& x = shape_of(graph, node, 0);
  for (size_t slot = 1; slot < node.in.size(); ++slot) {
    if (node.in[slot] == kNone) continue;
    const Shape& given = shape_of(graph, node, slot);
    const int64_t values = count(given);
    if (values == x[1] && (given.size() == 1 || broadcast_shape(given, x, "alpha")[1] == values)) continue;
    throw invalid("{} of snake has shape {}; it must hold a value for each of {} channels",
                  node.op->args[slot - 1].name, to_string(given), x[1]);
  }
  return x;
}

// Calls f(i, channel of i).
template <class F>
void for_each_channel(const Tensor& out, F f) {
  const int64_t rows = out.shape[0] * out.shape[1], voxels = rows == 0 ? 0 : count(out.shape) / rows;
  for (int64_t i = 0; i < rows * voxels; ++i) f(i, i / voxels % out.shape[1]);
}

void evaluate(const Node& node, Inputs in, Tensor& out) {
  const double eps = numbers(node).b;
  for_each_channel(out, [&](int64_t i, int64_t c) {
    const double alpha = in[1]->data[c];
    out.data[i] = snake(in[0]->data[i], alpha, (in[2] ? in[2]->data[c] : alpha) + eps);
  });
}

// alpha x moves by d = |alpha| ex + |x| ea + ex ea and is rounded; sin^2 moves by d at most, and by 1.
void bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const double eps = numbers(node).b, u = rounding.unit;
  for_each_channel(out, [&](int64_t i, int64_t c) {
    const double x = in[0]->data[i], ex = in[0]->err[i], alpha = in[1]->data[c], ea = in[1]->err[c];
    const double beta = in[2] ? in[2]->data[c] : alpha, b = beta + eps;
    const double eb = (in[2] ? in[2]->err[c] : ea) + u * (std::fabs(b) + std::fabs(eps));
    const double left = std::fabs(b) - eb, s = std::sin(alpha * x), square = s * s;
    const double d = std::fabs(alpha) * ex + std::fabs(x) * ea + ex * ea + 2 * u * std::fabs(alpha * x);
    const double moved = std::min(1.0, d) + 8 * u * square + square * eb / std::fabs(b);
    out.err[i] = left <= 0 ? std::numeric_limits<double>::infinity()
                           : ex + moved / left + 2 * u * std::fabs(out.data[i]);
  });
}

}  // namespace

std::vector<Operation> ops_snake() {
  Operation op{.id = Op::kSnake, .family = Family::kPointwise, .name = "snake"};
  op.summary = "x + sin(alpha x)^2 / (beta + eps), values a channel; beta is alpha and eps 0 unless said";
  op.example = "snake alpha beta";
  op.args = {{.name = "alpha", .kind = Arg::Kind::kTensor, .required = true},
             {.name = "beta", .kind = Arg::Kind::kTensor},
             {.name = "eps", .kind = Arg::Kind::kReal, .named = true}};
  op.shape = snake_shape;
  op.value = snake;
  op.evaluate = evaluate;
  op.bound = bound;
  op.reach = [](const Node&) { return Reach::kPoint; };
  op.ops_per_element = 24;
  return {op};
}

}  // namespace upweave
