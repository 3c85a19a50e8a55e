#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/operation.h"

// softmax over channels or over space: exp(x - max) / sum exp(x - max).
namespace upweave {
namespace {

bool over_channels(const Node& node) { return node.attrs.word("axes") == "channel"; }

int64_t voxels(const Shape& shape) {
  int64_t n = 1;
  for (size_t a = 2; a < shape.size(); ++a) n *= shape[a];
  return n;
}

Shape stats_shape(const Node& node, const Shape& x) {
  return {2, over_channels(node) ? x[0] * voxels(x) : x[0] * x[1]};
}

// A set of softmax: `size` elements, `stride` apart, from `start`.
template <class F>
void for_each_set(const Node& node, const Shape& shape, F f) {
  const int64_t n = voxels(shape), outer = shape[0] * shape[1];
  if (over_channels(node)) {
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t v = 0; v < n; ++v) f(b * n + v, b * shape[1] * n + v, n, shape[1]);
    }
  } else {
    for (int64_t s = 0; s < outer; ++s) f(s, s * n, 1, n);
  }
}

// Maximum and sum of one set, NaN if any element is.
std::pair<double, double> stats(const double* x, int64_t stride, int64_t size) {
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < size; ++i)
    top = std::isnan(x[i * stride]) || x[i * stride] > top ? x[i * stride] : top;
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += std::exp(x[i * stride] - top);
  return {top, sum};
}

void evaluate(const Node& node, Inputs in, Tensor& out) {
  for_each_set(node, out.shape, [&](int64_t, int64_t start, int64_t stride, int64_t size) {
    const double* x = in[0]->data.data() + start;
    const auto [top, sum] = stats(x, stride, size);
    for (int64_t i = 0; i < size; ++i) out.data[start + i * stride] = std::exp(x[i * stride] - top) / sum;
  });
}

// If no x moves by more than e, a softmax moves relatively by at most exp(2e) - 1; x - max is rounded too.
void bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  for_each_set(node, out.shape, [&](int64_t, int64_t start, int64_t stride, int64_t size) {
    double e = 0, top = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < size; ++i) {
      e = std::max(e, in[0]->err[start + i * stride]);
      top = std::max(top, in[0]->data[start + i * stride]);
    }
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = start + i * stride;
      const double away = std::fabs(in[0]->data[at] - top);
      // What comes out lies in [0, 1], whatever the exponents; fmin: 0 * inf says nothing else.
      out.err[at] =
          std::fmin(1, out.data[at] * (std::expm1(2 * e + 2 * rounding.unit * away) + 32 * rounding.unit));
    }
  });
}

// {2, sets}: the maxima, then the sums of exp(x - max).
void stats_evaluate(const Node& node, Inputs in, Tensor& out) {
  const int64_t sets = out.shape[1];
  for_each_set(node, in[0]->shape, [&](int64_t s, int64_t start, int64_t stride, int64_t size) {
    const auto [top, sum] = stats(in[0]->data.data() + start, stride, size);
    out.data[s] = top;
    out.data[sets + s] = sum;
  });
}

void apply_evaluate(const Node& node, Inputs in, Tensor& out) {
  const int64_t sets = in[1]->shape[1];
  for_each_set(node, out.shape, [&](int64_t s, int64_t start, int64_t stride, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = start + i * stride;
      out.data[at] = std::exp(in[0]->data[at] - in[1]->data[s]) / in[1]->data[sets + s];
    }
  });
}

}  // namespace

std::vector<Operation> ops_softmax() {
  const Arg axes{.name = "axes", .kind = Arg::Kind::kWord, .required = true, .words = {"channel", "space"}};
  Operation softmax{.id = Op::kSoftmax, .family = Family::kSoftmax, .name = "softmax"};
  softmax.summary = "exp(x) / sum exp(x) over channels, or over all of space";
  softmax.example = "softmax space";
  softmax.args = {axes};
  softmax.shape = [](const Graph& graph, const Node& node) { return shape_of(graph, node, 0); };
  softmax.evaluate = evaluate;
  softmax.bound = bound;
  softmax.reach = [](const Node& node) { return over_channels(node) ? Reach::kChannels : Reach::kSpace; };
  softmax.ops_per_element = 15;
  softmax.range = [](const Node&) -> std::optional<Range> { return Range{0, 1}; };

  Operation stats_row = softmax;
  stats_row.id = Op::kSoftmaxStats;
  stats_row.name = "softmax_stats";
  stats_row.summary = "maximum and sum of exp(x - maximum) of each set";
  stats_row.example = "softmax_stats space";
  stats_row.shape = [](const Graph& graph, const Node& node) {
    return stats_shape(node, shape_of(graph, node, 0));
  };
  stats_row.evaluate = stats_evaluate;
  stats_row.bound = nullptr;
  stats_row.range = nullptr;
  stats_row.internal = true;

  Operation apply = softmax;
  apply.id = Op::kSoftmaxApply;
  apply.name = "softmax_apply";
  apply.summary = "exp(x - maximum) / sum with given statistics";
  apply.example = "softmax_apply space @s";
  apply.args = {axes, {.name = "stats", .kind = Arg::Kind::kTensor, .required = true}};
  apply.shape = [](const Graph& graph, const Node& node) {
    const Shape& x = shape_of(graph, node, 0);
    const Shape expected = stats_shape(node, x);
    if (shape_of(graph, node, 1) != expected) {
      throw invalid("the stats of softmax_apply have shape {}; it must be {}",
                    to_string(shape_of(graph, node, 1)), to_string(expected));
    }
    return x;
  };
  apply.evaluate = apply_evaluate;
  apply.bound = nullptr;
  apply.reach = [](const Node&) { return Reach::kPoint; };
  apply.internal = true;
  return {softmax, stats_row, apply};
}

}  // namespace upweave
