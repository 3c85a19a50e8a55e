#include "graph/ops/conv_transpose.h"

#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/threads.h"
#include "base/watch.h"
#include "graph/limits.h"
#include "graph/ops/conv.h"

namespace upweave {
namespace {

constexpr size_t kKernel = 1, kBias = 2;

// O = (I - 1)*stride - 2*padding + dilation*(K - 1) + output_padding + 1, of which every step-th is wanted,
// unless a rewrite cropped it to `out`.
Shape out_extents(const Graph& graph, const Node& node) {
  const Shape& in = shape_of(graph, node, 0);
  const Shape& kernel = shape_of(graph, node, kKernel);
  const size_t spatial = spatial_rank(in);
  auto [stride, padding, extra, dilation, step, out, groups] = conv_attrs(node, spatial);
  double volume = 1;  // before padding
  for (size_t a = 0; a < spatial; ++a) {
    const char* ax = axis_suffix(a, spatial);
    const int64_t k = kernel[a + 2];
    if (stride[a] < 1) throw invalid("stride_{} is {}; it must be at least 1", ax, stride[a]);
    if (dilation[a] < 1) throw invalid("dilation_{} is {}; it must be at least 1", ax, dilation[a]);
    if (step[a] < 1 || (step[a] > 1 && stride[a] > 1)) {
      throw invalid("step_{} is {} beside a stride of {}; it must be at least 1, and one of them 1", ax,
                    step[a], stride[a]);
    }
    if (padding[a] < 0) throw invalid("padding_{} is {}; it must not be negative", ax, padding[a]);
    if (extra[a] < 0 || (extra[a] >= stride[a] && extra[a] >= dilation[a])) {
      throw invalid("output_padding_{} is {}; it must be smaller than stride_{}, which is {}", ax, extra[a],
                    ax, stride[a]);
    }
    for (const auto& [name, value] :
         {std::pair("stride", stride[a]), std::pair("dilation", dilation[a]),
          std::pair("padding", padding[a]), std::pair("step", step[a]), std::pair("out", out[a])}) {
      if (value > kMaxElements) throw invalid("{}_{} is {}; it must be at most 2^40", name, ax, value);
    }
    int64_t o = checked_mul(in[a + 2] - 1, stride[a], "the output extent");
    o = checked_add(o, checked_mul(dilation[a], k - 1, "the output extent"), "the output extent");
    o = checked_add(o, extra[a] + 1, "the output extent");
    volume *= static_cast<double>(o);
    if (volume > static_cast<double>(kMaxElements)) {
      throw invalid(
          "the output before padding has more than 2^40 positions: its extent along {} is {} (input {}, "
          "kernel "
          "{}, stride {}, dilation {})",
          ax, o, in[a + 2], k, stride[a], dilation[a]);
    }
    o -= 2 * padding[a];
    if (node.attrs.has("out")) {
      if (out[a] < 1) throw invalid("out_{} is {}; it must be at least 1", ax, out[a]);
      continue;
    }
    if (o < 1) {
      throw invalid(
          "the output's extent along {} is {}: input {}, kernel {}, stride {}, padding {}, output_padding {}",
          ax, o, in[a + 2], k, stride[a], padding[a], extra[a]);
    }
    out[a] = (o - 1) / step[a] + 1;
  }
  return out;
}

// Per axis, taps of one residue are stride / gcd(stride, dilation) apart: so many meet in one output.
double taps_per_output(const Node& node, const Shape& kernel) {
  const size_t spatial = kernel.size() - 2;
  const ConvAttrs c = conv_attrs(node, spatial);
  double taps = 1;
  for (size_t a = 0; a < spatial; ++a) {
    const int64_t apart = c.stride[a] / std::gcd(c.stride[a], c.dilation[a]);
    taps *= static_cast<double>((kernel[a + 2] + apart - 1) / apart);
  }
  return taps;
}

// Engines have tables of phases and of the taps of each.
void check_phases(const Node& node, const Shape& kernel) {
  double phases = 1;
  const Shape stride = conv_attrs(node, kernel.size() - 2).stride;
  for (const int64_t s : stride) phases *= static_cast<double>(s);
  if (phases > static_cast<double>(kMaxPhases)) {
    throw invalid("stride {} makes {} phases of {}; there may be {}", to_string(stride), phases,
                  node.op->name, kMaxPhases);
  }
  if (const double taps = taps_per_output(node, kernel); taps > static_cast<double>(kMaxTaps)) {
    throw invalid("{} taps of a kernel of extents {} meet in one output; there may be {}", taps,
                  to_string(Shape(kernel.begin() + 2, kernel.end())), kMaxTaps);
  }
}

void check_kernel_rank(const Graph& graph, const Node& node) {
  const Shape &in = shape_of(graph, node, 0), &kernel = shape_of(graph, node, kKernel);
  const std::string& name = graph[node.in[kKernel]].name;
  if (kernel.size() == in.size()) return;
  throw invalid(
      "{} has shape {}; for an input of shape {} it must be (C_in, C_out, one extent per spatial axis)",
      name.empty() ? "kernel" : name, to_string(kernel), to_string(in));
}

Shape conv_shape(const Graph& graph, const Node& node) {
  check_kernel_rank(graph, node);
  const Shape& in = shape_of(graph, node, 0);
  const Shape& kernel = shape_of(graph, node, kKernel);
  const int64_t groups = conv_groups(node);
  const std::string& name = graph[node.in[kKernel]].name;
  if (groups < 1) throw invalid("groups is {}; it must be at least 1", groups);
  if (in[1] % groups != 0)
    throw invalid("in_channels is {}, which groups = {} does not divide", in[1], groups);
  if (kernel[0] != in[1]) {
    throw invalid("{} has {} input channels (its first extent); the value it meets has {}",
                  name.empty() ? "kernel" : name, kernel[0], in[1]);
  }
  const int64_t c_out = checked_mul(kernel[1], groups, "out_channels");
  check_conv_words(graph, node, c_out);
  Shape shape = {in[0], c_out};
  const Shape out = out_extents(graph, node);
  check_phases(node, kernel);
  shape.insert(shape.end(), out.begin(), out.end());
  return shape;
}

Shape conv_param_shape(const Graph& graph, const Node& node, size_t slot) {
  const Shape& in = shape_of(graph, node, 0);
  const int64_t groups = conv_groups(node);
  if (slot == kBias) {
    check_kernel_rank(graph, node);
    return {checked_mul(shape_of(graph, node, kKernel)[1], groups, "out_channels")};
  }
  const auto [c_out, extents] = declared_kernel(node, graph[node.in[slot]].name, spatial_rank(in));
  Shape shape = {in[1], c_out / groups};
  shape.insert(shape.end(), extents.begin(), extents.end());
  return shape;
}

// Visits every (input row, kernel element, output row) triple of one (n, group, co): the naive definition.
// f(x offset of w=0, kernel offset of kw=0, output offset of ow=0)
template <class F>
void for_each_row(const ConvGeometry& g, int64_t n, int64_t co, F f) {
  const size_t s = g.spatial;
  auto at = [&](const Shape& v, size_t axis3,
                int64_t missing) {  // axis3: 0 d, 1 h, 2 w; missing leading axes
    return axis3 + s >= 3 ? v[axis3 + s - 3] : missing;
  };
  auto place = [&](size_t axis3, int64_t i,
                   int64_t k) -> int64_t {  // -1: between the outputs that are wanted
    const int64_t o = i * at(g.stride, axis3, 1) - at(g.padding, axis3, 0) + k * at(g.dilation, axis3, 1);
    const int64_t step = at(g.step, axis3, 1);
    return o < 0 || o % step != 0 ? -1 : o / step;
  };
  const int64_t per_group_out = g.c_out / g.groups, per_group_in = g.c_in / g.groups,
                group = co / per_group_out;
  const int64_t ID = at(g.in, 0, 1), IH = at(g.in, 1, 1), IW = at(g.in, 2, 1);
  const int64_t OD = at(g.out, 0, 1), OH = at(g.out, 1, 1), OW = at(g.out, 2, 1);
  const int64_t KD = at(g.kernel, 0, 1), KH = at(g.kernel, 1, 1), KW = at(g.kernel, 2, 1);
  for (int64_t ci = group * per_group_in; ci < (group + 1) * per_group_in; ++ci) {
    for (int64_t id = 0; id < ID; ++id) {
      for (int64_t kd = 0; kd < KD; ++kd) {
        const int64_t od = place(0, id, kd);
        if (od < 0 || od >= OD) continue;
        for (int64_t ih = 0; ih < IH; ++ih) {
          for (int64_t kh = 0; kh < KH; ++kh) {
            const int64_t oh = place(1, ih, kh);
            if (oh < 0 || oh >= OH) continue;
            f((((n * g.c_in + ci) * ID + id) * IH + ih) * IW,
              (((ci * per_group_out + co % per_group_out) * KD + kd) * KH + kh) * KW,
              (((n * g.c_out + co) * OD + od) * OH + oh) * OW);
          }
        }
      }
    }
  }
}

// out[ow] += x[iw] * k[kw] along one row, for each of `terms` pairs of arrays.
template <class F>
void along_row(const ConvGeometry& g, F f) {
  const size_t w = g.spatial - 1;
  for (int64_t kw = 0; kw < g.kernel[w]; ++kw) {
    const int64_t shift = kw * g.dilation[w] - g.padding[w];  // ow*step = iw*stride + shift
    const int64_t lo = shift < 0 ? (-shift + g.stride[w] - 1) / g.stride[w] : 0;
    const int64_t last = (g.out[w] - 1) * g.step[w] - shift;
    const int64_t hi = last < 0 ? 0 : std::min(g.in[w], last / g.stride[w] + 1);
    f(kw, shift, lo, hi);
  }
}

void conv_evaluate(const Node& node, Inputs in, Tensor& out) {
  // Operands carry their shapes; rebuild the geometry from them.
  Graph graph;
  Node copy = node;
  for (size_t slot = 0; slot < node.in.size(); ++slot) {
    Node leaf;
    if (in[slot]) leaf.shape = in[slot]->shape;
    copy.in[slot] = in[slot] ? graph.add(leaf) : kNone;
  }
  copy.shape = out.shape;
  const ConvGeometry g = conv_geometry(graph, copy);
  const double* x = in[0]->data.data();
  const double* k = in[kKernel]->data.data();
  const int64_t voxels = count(g.out);
  Watch* watch = Watch::here();
  // Small cases, of which tests run thousands, do not wake threads.
  [[maybe_unused]] const int threads = count(out.shape) > 4096 ? usable_threads(0) : 1;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t co = 0; co < g.c_out; ++co) {
      if (interrupted(watch)) continue;
      double* y = out.data.data() + (n * g.c_out + co) * voxels;
      std::fill(y, y + voxels, in[kBias] ? in[kBias]->data[co] : 0.0);
      for_each_row(g, n, co, [&](int64_t xi, int64_t ki, int64_t yi) {
        along_row(g, [&](int64_t kw, int64_t shift, int64_t lo, int64_t hi) {
          const double weight = k[ki + kw];
          double* row = out.data.data() + yi;
          const int64_t stride = g.stride[g.spatial - 1], step = g.step[g.spatial - 1];
          if (step == 1) {
            for (int64_t iw = lo; iw < hi; ++iw) row[iw * stride + shift] += x[xi + iw] * weight;
          } else {  // the stride is 1
            const int64_t first = (step - (lo + shift) % step) % step;
            for (int64_t iw = lo + first; iw < hi; iw += step)
              row[(iw + shift) / step] += x[xi + iw] * weight;
          }
        });
      });
    }
  }
}

// A transform's tile is 4 outputs of each phase.
void conv_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const Shape& kernel = in[kKernel]->shape;
  Shape tile = conv_attrs(node, spatial_rank(out.shape)).stride;
  for (int64_t& extent : tile) extent *= 4;
  const double terms = static_cast<double>(kernel[0] / conv_groups(node)) * taps_per_output(node, kernel);
  convolution_bound(node, in, out, rounding, conv_evaluate, terms, tile);
}

// mean over space of convT(x; K) = 1/|O| sum over ci, k of K[ci, co, k] * S[ci, k], where S[ci, k] is the sum
// of x over the box of inputs whose tap k lands inside the output. Per axis that box is an interval; a tap
// whose box is empty takes no part, whatever its value.
void mean_conv_evaluate(const Node& node, Inputs in, Tensor& out) {
  const Shape& xs = in[0]->shape;
  const Shape& ks = in[kKernel]->shape;
  const size_t spatial = spatial_rank(xs);
  const auto [stride, padding, extra, dilation, step, extent, groups] = conv_attrs(node, spatial);
  const int64_t c_in = xs[1], per_out = ks[1], per_in = c_in / groups;
  const Shape taps(ks.begin() + 2, ks.end());
  const int64_t volume = count(Shape(xs.begin() + 2, xs.end())), tap_count = count(taps);
  const Shape xstride = row_major(xs);
  std::vector<bool> used(tap_count);
  for (int64_t n = 0; n < xs[0]; ++n) {
    std::vector<double> sums(c_in * tap_count);
    for_each_index(taps, [&](const Shape& k, int64_t t) {
      Shape lo(spatial), size(spatial);
      for (size_t a = 0; a < spatial; ++a) {
        const int64_t shift = k[a] * dilation[a] - padding[a], last = extent[a] - 1 - shift;
        lo[a] = shift < 0 ? (-shift + stride[a] - 1) / stride[a] : 0;
        const int64_t hi = last < 0 ? 0 : std::min(xs[a + 2], last / stride[a] + 1);
        size[a] = std::max<int64_t>(0, hi - lo[a]);
      }
      used[t] = count(size) > 0;
      for (int64_t ci = 0; ci < c_in; ++ci) {
        double sum = 0;
        for_each_index(size, [&](const Shape& at, int64_t) {
          int64_t offset = (n * c_in + ci) * volume;
          for (size_t a = 0; a < spatial; ++a) offset += (lo[a] + at[a]) * xstride[a + 2];
          sum += in[0]->data[offset];
        });
        sums[ci * tap_count + t] = sum;
      }
    });
    for (int64_t co = 0; co < per_out * groups; ++co) {
      double total = 0;
      for (int64_t ci = co / per_out * per_in; ci < (co / per_out + 1) * per_in; ++ci) {
        for (int64_t t = 0; t < tap_count; ++t) {
          if (!used[t]) continue;
          total +=
              in[kKernel]->data[(ci * per_out + co % per_out) * tap_count + t] * sums[ci * tap_count + t];
        }
      }
      out.data[n * per_out * groups + co] = total / static_cast<double>(count(extent));
    }
  }
}

Reach neighbourhood(const Node&) { return Reach::kWindow; }

}  // namespace

ConvAttrs conv_attrs(const Node& node, size_t spatial) {
  return {.stride = per_axis(node, "stride", spatial, 1),
          .padding = per_axis(node, "padding", spatial, 0),
          .output_padding = per_axis(node, "output_padding", spatial, 0),
          .dilation = per_axis(node, "dilation", spatial, 1),
          .step = per_axis(node, "step", spatial, 1),
          .out = per_axis(node, "out", spatial, 0),
          .groups = conv_groups(node)};
}

ConvGeometry conv_geometry(const Graph& graph, const Node& node) {
  ConvGeometry g;
  const Shape& in = shape_of(graph, node, 0);
  const Shape& kernel = shape_of(graph, node, kKernel);
  g.spatial = spatial_rank(in);
  const ConvAttrs attrs = conv_attrs(node, g.spatial);
  g.groups = attrs.groups;
  g.batch = in[0];
  g.c_in = in[1];
  g.c_out = kernel[1] * g.groups;
  g.in.assign(in.begin() + 2, in.end());
  g.kernel.assign(kernel.begin() + 2, kernel.end());
  g.out.assign(node.shape.begin() + 2, node.shape.end());
  g.stride = attrs.stride;
  g.padding = attrs.padding;
  g.dilation = attrs.dilation;
  g.step = attrs.step;
  return g;
}

namespace {

// Sum of floor((a i + b) / m) over 0 <= i < n, for a, b >= 0 and m > 0, by Euclid's steps on a and m.
int64_t floor_sum(int64_t n, int64_t m, int64_t a, int64_t b) {
  int64_t sum = 0;
  while (n > 0) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const int64_t top = a * n + b;
    n = top / m;
    b = top % m;
    std::swap(m, a);
  }
  return sum;
}

// Pairs (i, k) with i*stride + k*dilation <= last. Taps up to `full` do so with every input.
int64_t pairs_up_to(const ConvGeometry& g, size_t axis, int64_t last) {
  const int64_t in = g.in[axis], s = g.stride[axis], d = g.dilation[axis];
  if (last < 0) return 0;
  const int64_t taps = std::min(g.kernel[axis], last / d + 1), reach = last - (in - 1) * s;
  const int64_t full = reach < 0 ? 0 : std::min(taps, reach / d + 1), n = taps - full;
  return full * in + n + floor_sum(n, s, d, last - (taps - 1) * d);
}

}  // namespace

int64_t taps_total(const ConvGeometry& g, size_t axis) {
  if (!g.every_output() &&
      g.step[axis] > 1) {  // pairs of an output and a tap that read the input, counted the other way round
    ConvGeometry turned = g;
    std::swap(turned.in, turned.out);
    turned.stride = g.step;
    turned.padding[axis] = g.dilation[axis] * (g.kernel[axis] - 1) - g.padding[axis];
    turned.step[axis] = 1;
    return taps_total(turned, axis);
  }
  const int64_t before = g.padding[axis] - 1;
  return pairs_up_to(g, axis, before + g.out[axis]) - pairs_up_to(g, axis, before);
}

// Tap k puts input i at i*stride + shift, shift = k*dilation - padding. An output of a stride or more has a
// place for one of them unless all lie before or behind it, and so has one input; shifts rise with k.
bool all_taps_land(const ConvGeometry& g, size_t axis) {
  const int64_t in = g.in[axis], s = g.stride[axis];
  const int64_t first = -g.padding[axis], last = first + (g.kernel[axis] - 1) * g.dilation[axis];
  return (g.out[axis] >= s || in == 1) && (in - 1) * s + first >= 0 && last < g.out[axis];
}

void check_conv_tables(const Graph& graph) {
  int64_t phases = 0, extents = 0;
  for (const Node& node : graph.nodes) {
    if (!is(node, Family::kConvolution)) continue;
    const size_t spatial = spatial_rank(shape_of(graph, node, 0));
    if (!is_plain_conv(node)) {
      int64_t all = 1;
      for (const int64_t s : conv_attrs(node, spatial).stride) all *= s;  // each conv's is checked
      phases += all;
    }
    const Shape& kernel = shape_of(graph, node, kKernel);
    for (size_t a = 2; a < kernel.size(); ++a) extents += kernel[a];
  }
  if (phases > kMaxPhases) {
    throw invalid("the strides of all transposed convolutions make {} phases; there may be {}", phases,
                  kMaxPhases);
  }
  if (extents > kMaxKernelExtents) {
    throw invalid("the kernels of all convolutions have extents of {} together; it may be {}", extents,
                  kMaxKernelExtents);
  }
}

std::vector<Operation> ops_conv_transpose() {
  Operation conv{.id = Op::kConvTranspose, .family = Family::kConvolution, .name = "conv_transpose"};
  conv.summary = "transposed convolution; kernel is (C_in, C_out/groups, K...), `64 k3` declares its size";
  conv.example = "conv_transpose kernel bias s2 p1 op1";
  conv.args = {{.name = "weights", .kind = Arg::Kind::kTensor, .required = true},
               {.name = "bias", .kind = Arg::Kind::kTensor},
               {.name = "channels", .kind = Arg::Kind::kInts, .single = true},
               {.name = "kernel", .kind = Arg::Kind::kInts, .prefix = "k"},
               {.name = "stride", .kind = Arg::Kind::kInts, .prefix = "s"},
               {.name = "padding", .kind = Arg::Kind::kInts, .prefix = "p"},
               {.name = "output_padding", .kind = Arg::Kind::kInts, .prefix = "op"},
               {.name = "dilation", .kind = Arg::Kind::kInts, .prefix = "d"},
               {.name = "groups", .kind = Arg::Kind::kInts, .prefix = "g", .single = true},
               {.name = "step", .kind = Arg::Kind::kInts, .prefix = "step"},
               {.name = "out", .kind = Arg::Kind::kInts, .prefix = "out"}};
  conv.shape = conv_shape;
  conv.evaluate = conv_evaluate;
  conv.bound = conv_bound;
  conv.reach = neighbourhood;
  conv.param_shape = conv_param_shape;

  Operation mean = conv;
  mean.id = Op::kMeanConv;
  mean.name = "mean_conv";
  mean.summary = "mean over space of a transposed convolution with extents `out`, without the convolution";
  mean.example = "mean_conv kernel s2 p1 out63";
  mean.shape = [](const Graph& graph, const Node& node) {
    Shape shape = conv_shape(graph, node);
    std::fill(shape.begin() + 2, shape.end(), 1);
    return shape;
  };
  mean.evaluate = mean_conv_evaluate;
  mean.bound = nullptr;
  mean.reach = [](const Node&) { return Reach::kSpace; };
  mean.args.back().required = true;
  mean.internal = true;
  return {conv, mean};
}

}  // namespace upweave
