#include "graph/ops/pools.h"

#include <algorithm>
#include <cmath>
#include <limits>

// avg_pool, max_pool, min_pool: any window and stride, no padding, floor division. A pool with a `sign`
// tensor (one value a channel) takes the other extreme where the sign is negative.
namespace upweave {
namespace {

Shape pool_shape(const Graph& graph, const Node& node) {
  const Shape& in = shape_of(graph, node, 0);
  const size_t spatial = spatial_rank(in);
  const auto [window, stride] = pool_attrs(node, spatial);
  if (node.in.size() > 1 && node.in[1] != kNone) {
    const Shape& sign = shape_of(graph, node, 1);
    if (count(sign) != 1 && count(sign) != in[1]) {
      throw invalid("the sign of {} has shape {}; the value it meets has {} channels", node.op->name,
                    to_string(sign), in[1]);
    }
  }
  Shape out = in;
  for (size_t a = 0; a < spatial; ++a) {
    const char* ax = axis_suffix(a, spatial);
    if (window[a] < 1)
      throw invalid("the window of {} along {} is {}; it must be at least 1", node.op->name, ax, window[a]);
    if (stride[a] < 1)
      throw invalid("the stride of {} along {} is {}; it must be at least 1", node.op->name, ax, stride[a]);
    if (in[a + 2] < window[a]) {
      throw invalid("{} with a window of {} along {} leaves nothing of an extent of {}", node.op->name,
                    window[a], ax, in[a + 2]);
    }
    out[a + 2] = (in[a + 2] - window[a]) / stride[a] + 1;
  }
  return out;
}

// Calls f(output offset, input offset) for every element of every window.
template <class F>
void for_each_window(const Node& node, const Shape& in, const Shape& out, F f) {
  const size_t spatial = spatial_rank(in);
  const PoolAttrs pool = pool_attrs(node, spatial);
  const Shape strides = row_major(in);
  std::vector<int64_t> offsets;
  for_each_index(pool.window, [&](const Shape& w, int64_t) {
    int64_t offset = 0;
    for (size_t a = 0; a < spatial; ++a) offset += w[a] * strides[a + 2];
    offsets.push_back(offset);
  });
  for_each_index(out, [&](const Shape& index, int64_t o) {
    int64_t base = index[0] * strides[0] + index[1] * strides[1];
    for (size_t a = 0; a < spatial; ++a) base += index[a + 2] * pool.stride[a] * strides[a + 2];
    for (const int64_t offset : offsets) f(o, base + offset);
  });
}

double window_size(const Node& node, const Shape& in) {
  double n = 1;
  for (const int64_t w : pool_attrs(node, spatial_rank(in)).window) n *= static_cast<double>(w);
  return n;
}

void average(const Node& node, Inputs in, Tensor& out) {
  std::ranges::fill(out.data, 0.0);
  for_each_window(node, in[0]->shape, out.shape,
                  [&](int64_t o, int64_t i) { out.data[o] += in[0]->data[i]; });
  for (double& v : out.data) v /= window_size(node, in[0]->shape);
}

void average_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const double n = window_size(node, in[0]->shape);
  std::ranges::fill(out.err, 0.0);
  for_each_window(node, in[0]->shape, out.shape, [&](int64_t o, int64_t i) {
    out.err[o] += (in[0]->err[i] + (4 + std::sqrt(n)) * rounding.unit * std::fabs(in[0]->data[i])) / n;
  });
}

// NaN wins over everything, as in PyTorch.
void extreme(const Node& node, Inputs in, Tensor& out, bool largest) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const int64_t voxels = count(out.shape) / std::max<int64_t>(1, out.shape[0] * out.shape[1]);
  auto takes_max = [&](int64_t o) {
    const int64_t c = o / voxels % out.shape[1];
    const bool flip = in.size() > 1 && in[1] && in[1]->data[in[1]->data.size() == 1 ? 0 : c] < 0;
    return largest != flip;
  };
  for (int64_t o = 0; o < static_cast<int64_t>(out.data.size()); ++o)
    out.data[o] = takes_max(o) ? -kInf : kInf;
  for_each_window(node, in[0]->shape, out.shape, [&](int64_t o, int64_t i) {
    const double x = in[0]->data[i];
    double& y = out.data[o];
    if (std::isnan(x) || std::isnan(y))
      y = std::numeric_limits<double>::quiet_NaN();
    else
      y = takes_max(o) ? std::max(x, y) : std::min(x, y);
  });
}

void extreme_bound(const Node& node, Inputs in, Tensor& out, const Rounding&) {
  std::ranges::fill(out.err, 0.0);
  for_each_window(node, in[0]->shape, out.shape,
                  [&](int64_t o, int64_t i) { out.err[o] = std::max(out.err[o], in[0]->err[i]); });
}

Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example) {
  Operation op{.id = id, .family = Family::kPool, .name = name};
  op.summary = summary;
  op.example = example;
  op.args = {{.name = "window", .kind = Arg::Kind::kInts, .required = true},
             {.name = "stride", .kind = Arg::Kind::kInts, .prefix = "s"}};
  op.shape = pool_shape;
  op.reach = [](const Node&) { return Reach::kWindow; };
  return op;
}

}  // namespace

PoolAttrs pool_attrs(const Node& node, size_t spatial) {
  const Shape window = per_axis(node, "window", spatial, 1);
  return {window, node.attrs.has("stride") ? per_axis(node, "stride", spatial, 1) : window};
}

std::vector<Operation> ops_pools() {
  Operation avg = row(Op::kAvgPool, "avg_pool", "mean of each window; the stride is the window unless said",
                      "avg_pool 2");
  avg.evaluate = average;
  avg.bound = average_bound;
  Operation max = row(Op::kMaxPool, "max_pool",
                      "largest of each window; the stride is the window unless said", "max_pool 2x2x1 s2");
  Operation min = row(Op::kMinPool, "min_pool", "smallest of each window", "min_pool 2");
  max.evaluate = [](const Node& node, Inputs in, Tensor& out) { extreme(node, in, out, true); };
  min.evaluate = [](const Node& node, Inputs in, Tensor& out) { extreme(node, in, out, false); };
  for (Operation* op : {&max, &min}) {
    op->bound = extreme_bound;
    op->args.push_back({.name = "sign", .kind = Arg::Kind::kTensor, .named = true});
  }
  return {avg, max, min};
}

}  // namespace upweave
