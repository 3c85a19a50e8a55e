#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "graph/operation.h"

// What is computed from parameters alone, when weights are packed: by rewrites, and weight_norm.
namespace upweave {
namespace {

// x - mean over C_out: axis 1 of a kernel (C_in, C_out, K...), or all of a vector.
void center(const Node&, Inputs in, Tensor& out) {
  const Shape& shape = in[0]->shape;
  const int64_t outer = shape.size() == 1 ? 1 : shape[0], channels = shape.size() == 1 ? shape[0] : shape[1];
  const int64_t inner = channels == 0 ? 0 : count(shape) / (outer * channels);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      double mean = 0;
      for (int64_t c = 0; c < channels; ++c) mean += in[0]->data[(o * channels + c) * inner + i];
      mean /= static_cast<double>(channels);
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = (o * channels + c) * inner + i;
        out.data[at] = in[0]->data[at] - mean;
      }
    }
  }
}

// The kernel of avg_pool(convT(x; K)), per axis with window p, stride s = m p and padding P:
//   pooled[o] = 1/p sum_j conv[o p + j], conv[o p + j] = sum x[i] K[k] over o p + j = i s - P + k
// so x[i] reaches o = i m + t through K'[t] = 1/p sum_j K[t p + P + j], for t from -floor((P + p - 1)/p) on.
// Tap t is stored at t + padding', padding' = floor((P + p - 1)/p).
int64_t pooled_padding(int64_t padding, int64_t window) { return (padding + window - 1) / window; }
int64_t pooled_extent(int64_t kernel, int64_t padding, int64_t window) {
  const int64_t last = kernel - 1 - padding;  // the largest t has t p <= last
  const int64_t top = last >= 0 ? last / window : -((-last + window - 1) / window);
  return top + pooled_padding(padding, window) + 1;
}

Shape pooled_shape(const Graph& graph, const Node& node) {
  Shape shape = shape_of(graph, node, 0);
  if (shape.size() < 3 || shape.size() > 5) {
    throw invalid(
        "pool_taps meets a value of shape {}; it must be (C_in, C_out, one extent per spatial axis)",
        to_string(shape));
  }
  const size_t spatial = shape.size() - 2;
  const Shape window = per_axis(node, "window", spatial, 1), padding = per_axis(node, "padding", spatial, 0);
  for (size_t a = 0; a < spatial; ++a) {
    if (window[a] < 1) throw invalid("the window of pool_taps is {}; it must be at least 1", window[a]);
    if (padding[a] < 0) throw invalid("padding is {}; it must not be negative", padding[a]);
    checked_add(padding[a], window[a], "the pooled kernel");
    shape[a + 2] = pooled_extent(shape[a + 2], padding[a], window[a]);
  }
  return shape;
}

void pool_taps(const Node& node, Inputs in, Tensor& out) {
  const Shape& from = in[0]->shape;
  const size_t spatial = from.size() - 2;
  const Shape window = per_axis(node, "window", spatial, 1), padding = per_axis(node, "padding", spatial, 0);
  const Shape strides = row_major(from);
  double scale = 1;
  for (const int64_t p : window) scale /= static_cast<double>(p);
  for_each_index(out.shape, [&](const Shape& index, int64_t o) {
    double sum = 0;
    for_each_index(window, [&](const Shape& j, int64_t) {
      int64_t at = index[0] * strides[0] + index[1] * strides[1];
      for (size_t a = 0; a < spatial; ++a) {
        const int64_t t = index[a + 2] - pooled_padding(padding[a], window[a]);
        const int64_t k = t * window[a] + padding[a] + j[a];
        if (k < 0 || k >= from[a + 2]) return;
        at += k * strides[a + 2];
      }
      sum += in[0]->data[at];
    });
    out.data[o] = sum * scale;
  });
}

// g v / |v|, the length over all axes but the first.
Shape weight_norm_shape(const Graph& graph, const Node& node) {
  const Shape &v = shape_of(graph, node, 0), &g = shape_of(graph, node, 1);
  if (!graph[node.in[0]].of_parameters)
    throw invalid("weight_norm meets a value of shape {}; it is for parameters", to_string(v));
  if (count(g) != v[0])
    throw invalid("g of weight_norm has shape {}; it must hold {} values", to_string(g), v[0]);
  return v;
}

double length(const double* v, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += v[i] * v[i];
  return std::sqrt(sum);
}

void weight_norm(const Node&, Inputs in, Tensor& out) {
  const int64_t rows = out.shape[0], n = count(out.shape) / rows;
  for (int64_t r = 0; r < rows; ++r) {
    const double* v = in[0]->data.data() + r * n;
    const double scale = in[1]->data[r] / length(v, n);
    for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = v[i] * scale;
  }
}

// |v| moves by |ev| at most; sums of squares round in 16 units.
void weight_norm_bound(const Node&, Inputs in, Tensor& out, const Rounding& rounding) {
  const int64_t rows = out.shape[0], n = count(out.shape) / rows;
  for (int64_t r = 0; r < rows; ++r) {
    const double size = length(in[0]->data.data() + r * n, n), moved = length(in[0]->err.data() + r * n, n);
    const double left = size - moved, g = std::fabs(in[1]->data[r]);
    for (int64_t k = r * n; k < (r + 1) * n; ++k) {
      const double v = std::fabs(in[0]->data[k]), ev = in[0]->err[k];
      out.err[k] = left > 0 ? (g * (ev + v * moved / size) + in[1]->err[r] * (v + ev)) / left +
                                  16 * rounding.unit * std::fabs(out.data[k])
                            : std::numeric_limits<double>::infinity();
    }
  }
}

}  // namespace

std::vector<Operation> ops_weights() {
  Operation centre{.id = Op::kCenter, .family = Family::kWeights, .name = "center"};
  centre.summary = "a kernel or a vector minus its mean over output channels";
  centre.example = "param kernel | center";
  centre.shape = [](const Graph& graph, const Node& node) { return shape_of(graph, node, 0); };
  centre.evaluate = center;
  centre.reach = [](const Node&) { return Reach::kPoint; };
  centre.internal = true;
  centre.of_weights = true;

  Operation taps = centre;
  taps.id = Op::kPoolTaps;
  taps.name = "pool_taps";
  taps.summary = "the kernel of an average pool behind a transposed convolution with this padding";
  taps.example = "param kernel | pool_taps 2 p1";
  taps.args = {{.name = "window", .kind = Arg::Kind::kInts, .required = true},
               {.name = "padding", .kind = Arg::Kind::kInts, .prefix = "p"}};
  taps.shape = pooled_shape;
  taps.evaluate = pool_taps;

  Operation norm = centre;
  norm.id = Op::kWeightNorm;
  norm.name = "weight_norm";
  norm.summary = "g v / |v| of a parameter v, the length over all axes but the first";
  norm.example = "param v | weight_norm g as w | @input | conv @w";
  norm.args = {{.name = "g", .kind = Arg::Kind::kTensor, .required = true}};
  norm.shape = weight_norm_shape;
  norm.param_shape = [](const Graph& graph, const Node& node, size_t) {
    return Shape{shape_of(graph, node, 0)[0]};
  };
  norm.evaluate = weight_norm;
  norm.bound = weight_norm_bound;
  norm.internal = false;
  return {centre, taps, norm};
}

}  // namespace upweave
