#include "graph/ops/reductions.h"

#include <algorithm>
#include <cmath>
#include <limits>

// sum, mean, max, min, logsumexp over channels, over space or over one spatial axis. Reduced axes keep the
// extent 1; `drop` removes them from the shape that the caller sees.
namespace upweave {
namespace {

Shape reduced_shape(const Graph& graph, const Node& node) {
  const Shape& in = shape_of(graph, node, 0);
  Shape out = in;
  for (const size_t axis : reduced_axes(node, in)) out[axis] = 1;
  return out;
}

// Calls f(output offset, input offset) in row-major order of the input.
template <class F>
void for_each_pair(const Tensor& in, const Tensor& out, F f) {
  Shape strides = row_major(out.shape);
  for (size_t a = 0; a < strides.size(); ++a) {
    if (out.shape[a] == 1) strides[a] = 0;
  }
  for_each_index(in.shape, [&](const Shape& index, int64_t i) {
    int64_t o = 0;
    for (size_t a = 0; a < index.size(); ++a) o += index[a] * strides[a];
    f(o, i);
  });
}

double terms(const Tensor& in, const Tensor& out) {
  return out.data.empty() ? 1 : static_cast<double>(in.data.size() / out.data.size());
}

void total(Inputs in, Tensor& out, double scale) {
  std::ranges::fill(out.data, 0.0);
  for_each_pair(*in[0], out, [&](int64_t o, int64_t i) { out.data[o] += in[0]->data[i]; });
  for (double& v : out.data) v *= scale;
}

// Partial sums are combined in float64, so the error does not grow with their number: 16 units.
void total_bound(Inputs in, Tensor& out, const Rounding& rounding, double scale) {
  std::ranges::fill(out.err, 0.0);
  for_each_pair(*in[0], out, [&](int64_t o, int64_t i) {
    out.err[o] += scale * (in[0]->err[i] + 16 * rounding.unit * std::fabs(in[0]->data[i]));
  });
}

void extreme(Inputs in, Tensor& out, double start, double (*pick)(double, double)) {
  std::ranges::fill(out.data, start);
  for_each_pair(*in[0], out, [&](int64_t o, int64_t i) {
    const double x = in[0]->data[i];
    double& y = out.data[o];
    y = std::isnan(x) || std::isnan(y) ? std::numeric_limits<double>::quiet_NaN() : pick(x, y);
  });
}

void extreme_bound(const Node&, Inputs in, Tensor& out, const Rounding&) {
  std::ranges::fill(out.err, 0.0);
  for_each_pair(*in[0], out, [&](int64_t o, int64_t i) { out.err[o] = std::max(out.err[o], in[0]->err[i]); });
}

double larger(double a, double b) { return std::max(a, b); }
double smaller(double a, double b) { return std::min(a, b); }
constexpr double kInf = std::numeric_limits<double>::infinity();

// log sum exp x = m + log sum exp(x - m). Where the maximum is infinite, m = 0 keeps PyTorch's answers.
void logsumexp(const Node&, Inputs in, Tensor& out) {
  Tensor top = out;
  extreme(in, top, -kInf, larger);
  for (double& m : top.data) {
    if (std::isinf(m)) m = 0;
  }
  std::ranges::fill(out.data, 0.0);
  for_each_pair(*in[0], out,
                [&](int64_t o, int64_t i) { out.data[o] += std::exp(in[0]->data[i] - top.data[o]); });
  for (size_t o = 0; o < out.data.size(); ++o) out.data[o] = top.data[o] + std::log(out.data[o]);
}

// d logsumexp <= max |dx|; the logarithm and the largest term round relative to themselves.
void logsumexp_bound(const Node&, Inputs in, Tensor& out, const Rounding& rounding) {
  std::ranges::fill(out.err, 0.0);
  for_each_pair(*in[0], out, [&](int64_t o, int64_t i) {
    out.err[o] = std::max(out.err[o], in[0]->err[i] + 2 * rounding.unit * std::fabs(in[0]->data[i]));
  });
  for (size_t o = 0; o < out.data.size(); ++o)
    out.err[o] += 16 * rounding.unit * (1 + std::fabs(out.data[o]));
}

Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example) {
  Operation op{.id = id, .family = Family::kReduction, .name = name};
  op.summary = summary;
  op.example = example;
  op.args = {{.name = "axes",
              .kind = Arg::Kind::kWord,
              .required = true,
              .words = {"channel", "space", "depth", "height", "width"}},
             {.name = "drop", .kind = Arg::Kind::kFlag}};
  op.shape = reduced_shape;
  op.reach = [](const Node& node) {
    const std::string& axes = node.attrs.word("axes");
    return axes == "channel" ? Reach::kChannels : axes == "space" ? Reach::kSpace : Reach::kRow;
  };
  return op;
}

}  // namespace

std::vector<size_t> reduced_axes(const Node& node, const Shape& shape) {
  const std::string& axes = node.attrs.word("axes");
  if (axes == "channel") return {1};
  std::vector<size_t> result;
  for (size_t a = 2; a < shape.size(); ++a) {
    if (axes == "space" || axes.front() == *axis_suffix(a - 2, shape.size() - 2)) result.push_back(a);
  }
  if (result.empty())
    throw invalid("{} {}: the value has shape {}, without that axis", node.op->name, axes, to_string(shape));
  return result;
}

std::vector<Operation> ops_reductions() {
  Operation sum = row(Op::kSum, "sum", "sum over channels, space, depth, height or width", "sum channel");
  sum.evaluate = [](const Node&, Inputs in, Tensor& out) { total(in, out, 1); };
  sum.bound = [](const Node&, Inputs in, Tensor& out, const Rounding& r) { total_bound(in, out, r, 1); };
  Operation mean = row(Op::kMean, "mean", "mean over channels, space, depth, height or width", "mean space");
  mean.evaluate = [](const Node&, Inputs in, Tensor& out) { total(in, out, 1 / terms(*in[0], out)); };
  mean.bound = [](const Node&, Inputs in, Tensor& out, const Rounding& r) {
    total_bound(in, out, r, 1 / terms(*in[0], out));
  };
  Operation max =
      row(Op::kMax, "max", "largest over channels, space, depth, height or width", "max channel drop");
  max.evaluate = [](const Node&, Inputs in, Tensor& out) { extreme(in, out, -kInf, larger); };
  max.bound = extreme_bound;
  Operation min =
      row(Op::kMin, "min", "smallest over channels, space, depth, height or width", "min channel");
  min.evaluate = [](const Node&, Inputs in, Tensor& out) { extreme(in, out, kInf, smaller); };
  min.bound = extreme_bound;
  Operation lse = row(Op::kLogsumexp, "logsumexp", "log of the sum of exponentials over channels or space",
                      "logsumexp channel");
  lse.args[0].words = {"channel", "space"};
  lse.evaluate = logsumexp;
  lse.bound = logsumexp_bound;
  lse.ops_per_element = 14;
  return {sum, mean, max, min, lse};
}

}  // namespace upweave
