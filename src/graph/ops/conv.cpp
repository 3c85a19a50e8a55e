#include "graph/ops/conv.h"

#include <cmath>

#include "base/checked.h"
#include "base/threads.h"
#include "base/watch.h"
#include "graph/limits.h"

// conv, and matmul, which is one of 1x1: out[n, co, o] = bias[co] + sum over ci, k of x[n, ci, o s - p + k d]
// K[co, ci, k], ci in co's group.
namespace upweave {
namespace {

constexpr size_t kKernel = 1, kBias = 2;

std::string kernel_name(const Graph& graph, const Node& node) {
  const std::string& name = graph[node.in[kKernel]].name;
  return name.empty() ? "kernel" : name;
}

// O = floor((I + p + pe - d (K - 1) - 1) / s) + 1
Shape out_extents(const Node& node, const Shape& in, const Shape& kernel) {
  const size_t spatial = spatial_rank(in);
  const PlainConvAttrs c = plain_conv_attrs(node, spatial);
  Shape out(spatial);
  double volume = 1, taps = 1;
  for (size_t a = 0; a < spatial; ++a) {
    const char* ax = axis_suffix(a, spatial);
    const int64_t extent = in[a + 2], k = kernel[a + 2];
    if (c.stride[a] < 1) throw invalid("stride_{} is {}; it must be at least 1", ax, c.stride[a]);
    if (c.dilation[a] < 1) throw invalid("dilation_{} is {}; it must be at least 1", ax, c.dilation[a]);
    for (const auto& [name, value] :
         {std::pair("stride", c.stride[a]), std::pair("dilation", c.dilation[a]),
          std::pair("padding", c.padding[a]), std::pair("padding_end", c.padding_end[a])}) {
      if (value > kMaxElements) throw invalid("{}_{} is {}; it must be at most 2^40", name, ax, value);
    }
    check_border(node, ax, c.padding[a], c.padding_end[a], extent);
    const int64_t padded = extent + c.padding[a] + c.padding_end[a];
    volume *= static_cast<double>(padded);
    taps *= static_cast<double>(k);
    if (volume > static_cast<double>(kMaxElements)) {
      throw invalid("the padded input has more than 2^40 positions: its extent along {} is {}", ax, padded);
    }
    const int64_t seen = checked_add(checked_mul(c.dilation[a], k - 1, "the kernel's reach"), 1, "its reach");
    if (seen > padded) {
      throw invalid(
          "the kernel of conv reaches over {} along {}, more than the padded input's {}: input {}, kernel "
          "{}, "
          "dilation {}, padding {} and {}",
          seen, ax, padded, extent, k, c.dilation[a], c.padding[a], c.padding_end[a]);
    }
    out[a] = (padded - seen) / c.stride[a] + 1;
  }
  if (taps > static_cast<double>(kMaxTaps)) {
    throw invalid("{} taps of a kernel of extents {} meet in one output; there may be {}", taps,
                  to_string(Shape(kernel.begin() + 2, kernel.end())), kMaxTaps);
  }
  return out;
}

Shape conv_shape(const Graph& graph, const Node& node) {
  const Shape &in = shape_of(graph, node, 0), &kernel = shape_of(graph, node, kKernel);
  const std::string name = kernel_name(graph, node);
  if (kernel.size() != in.size()) {
    throw invalid(
        "{} has shape {}; for an input of shape {} it must be (C_out, C_in / groups, one extent per spatial "
        "axis)",
        name, to_string(kernel), to_string(in));
  }
  const int64_t groups = conv_groups(node), c_out = kernel[0];
  if (groups < 1) throw invalid("groups is {}; it must be at least 1", groups);
  if (in[1] % groups != 0)
    throw invalid("in_channels is {}, which groups = {} does not divide", in[1], groups);
  if (c_out % groups != 0)
    throw invalid("out_channels is {}, which groups = {} does not divide", c_out, groups);
  if (kernel[1] != in[1] / groups) {
    throw invalid("{} has {} input channels a group (its second extent); the value it meets has {}", name,
                  kernel[1], in[1] / groups);
  }
  check_conv_words(graph, node, c_out);
  const Shape out = out_extents(node, in, kernel);
  Shape shape = {in[0], c_out};
  shape.insert(shape.end(), out.begin(), out.end());
  return shape;
}

Shape conv_param_shape(const Graph& graph, const Node& node, size_t slot) {
  const Shape& in = shape_of(graph, node, 0);
  if (slot == kBias) return {shape_of(graph, node, kKernel)[0]};
  const auto [c_out, extents] = declared_kernel(node, graph[node.in[slot]].name, spatial_rank(in));
  const int64_t groups = conv_groups(node);
  if (groups < 1) throw invalid("groups is {}; it must be at least 1", groups);
  if (in[1] % groups != 0)
    throw invalid("in_channels is {}, which groups = {} does not divide", in[1], groups);
  Shape shape = {c_out, in[1] / groups};
  shape.insert(shape.end(), extents.begin(), extents.end());
  return shape;
}

Shape matmul_shape(const Graph& graph, const Node& node) {
  const Shape &in = shape_of(graph, node, 0), &matrix = shape_of(graph, node, kKernel);
  if (matrix.size() != 2 || matrix[1] != in[1]) {
    throw invalid("{} has shape {}; for {} channels it must be (C_out, {})", kernel_name(graph, node),
                  to_string(matrix), in[1], in[1]);
  }
  check_conv_words(graph, node, matrix[0]);
  Shape shape = in;
  shape[1] = matrix[0];
  return shape;
}

Shape matmul_param_shape(const Graph& graph, const Node& node, size_t slot) {
  if (slot == kBias) return {shape_of(graph, node, kKernel)[0]};
  const std::string& name = graph[node.in[slot]].name;
  if (!node.attrs.has("channels"))
    throw invalid("the shape of {} is missing: give the tensor, or write its size as in 'matmul {} 64'", name,
                  name);
  const int64_t c_out = node.attrs.ints("channels").front();
  if (c_out < 1) throw invalid("out_channels is {}; it must be at least 1", c_out);
  return {c_out, shape_of(graph, node, 0)[1]};
}

// Where tap k of output o reads along one axis, at [k * out + o]; -1 where that is a zero.
std::vector<int64_t> sources(const PlainConvGeometry& g, size_t axis) {
  std::vector<int64_t> table;
  for (int64_t k = 0; k < g.kernel[axis]; ++k) {
    for (int64_t o = 0; o < g.out[axis]; ++o) {
      table.push_back(
          border_source(g.border, o * g.stride[axis] - g.padding[axis] + k * g.dilation[axis], g.in[axis]));
    }
  }
  return table;
}

void conv_evaluate(const Node& node, Inputs in, Tensor& out) {
  Node sized = node;
  sized.shape = out.shape;
  PlainConvGeometry g = plain_conv_geometry(sized, in[0]->shape, in[kKernel]->shape);
  for (Shape* shape : {&g.in, &g.out, &g.kernel, &g.stride, &g.dilation})
    shape->insert(shape->begin(), 3 - g.spatial, 1);
  g.padding.insert(g.padding.begin(), 3 - g.spatial, 0);
  const std::vector<int64_t> from[] = {sources(g, 0), sources(g, 1), sources(g, 2)};
  const int64_t per_in = g.c_in / g.groups, per_out = g.c_out / g.groups;
  const int64_t in_voxels = count(g.in), voxels = count(g.out), rows = g.out[1], width = g.out[2];
  Watch* watch = Watch::here();
  [[maybe_unused]] const int threads = count(out.shape) > 4096 ? usable_threads(0) : 1;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t co = 0; co < g.c_out; ++co) {
      if (interrupted(watch)) continue;
      double* y = out.data.data() + (n * g.c_out + co) * voxels;
      std::fill(y, y + voxels, in[kBias] ? in[kBias]->data[co] : 0.0);
      const double* weight = in[kKernel]->data.data() + co * per_in * count(g.kernel);
      for (int64_t ci = 0; ci < per_in; ++ci) {
        const double* x = in[0]->data.data() + (n * g.c_in + co / per_out * per_in + ci) * in_voxels;
        for_each_index(g.kernel, [&](const Shape& k, int64_t) {
          const double w = *weight++;
          for (int64_t od = 0; od < g.out[0]; ++od) {
            const int64_t d = from[0][k[0] * g.out[0] + od];
            for (int64_t oh = 0; d >= 0 && oh < rows; ++oh) {
              const int64_t h = from[1][k[1] * rows + oh];
              if (h < 0) continue;
              const double* row = x + (d * g.in[1] + h) * g.in[2];
              const int64_t* at = from[2].data() + k[2] * width;
              double* to = y + (od * rows + oh) * width;
              for (int64_t ow = 0; ow < width; ++ow) {
                if (at[ow] >= 0) to[ow] += row[at[ow]] * w;
              }
            }
          }
        });
      }
    }
  }
}

// A transform's tile is 4 outputs of each residue of the dilation.
void conv_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const Shape& kernel = in[kKernel]->shape;
  Shape tile = plain_conv_attrs(node, spatial_rank(out.shape)).dilation;
  for (int64_t& extent : tile) extent *= 4;
  convolution_bound(node, in, out, rounding, conv_evaluate, static_cast<double>(count(kernel) / kernel[0]),
                    tile);
}

// Widens each value to the largest among the outputs that share a transform tile with it.
void spread_over_tiles(std::vector<double>& v, const Shape& shape, const Shape& tile) {
  const Shape strides = row_major(shape);
  for (size_t a = 0; a < tile.size() && a + 2 < shape.size(); ++a) {
    const int64_t reach = tile[a] - 1, stride = strides[a + 2], extent = shape[a + 2];
    const std::vector<double> old = v;
    for_each_index(shape, [&](const Shape& index, int64_t i) {
      const int64_t at = index[a + 2];
      for (int64_t d = -std::min(reach, at); d <= std::min(reach, extent - 1 - at); ++d) {
        v[i] = std::max(v[i], old[i + d * stride]);
      }
    });
  }
}

std::vector<double> absolute(const std::vector<double>& v) {
  std::vector<double> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = std::fabs(v[i]);
  return r;
}

bool nonzero(const std::vector<double>& v) {
  return std::ranges::any_of(v, [](double e) { return e != 0; });
}

}  // namespace

int64_t conv_groups(const Node& node) {
  return node.attrs.has("groups") ? node.attrs.ints("groups").front() : 1;
}

void check_conv_words(const Graph& graph, const Node& node, int64_t c_out) {
  const Shape& kernel = shape_of(graph, node, kKernel);
  const std::string& name = graph[node.in[kKernel]].name;
  if (node.attrs.has("channels") && node.attrs.ints("channels").front() != c_out) {
    throw invalid("{} gives {} output channels; the pipeline says {}", name, c_out,
                  node.attrs.ints("channels").front());
  }
  if (node.attrs.has("kernel")) {
    const Shape said = per_axis(node, "kernel", kernel.size() - 2, 1);
    if (!std::equal(said.begin(), said.end(), kernel.begin() + 2)) {
      throw invalid("{} has extents {}; the pipeline says k{}", name,
                    to_string(Shape(kernel.begin() + 2, kernel.end())), to_string(said));
    }
  }
  if (node.in[kBias] != kNone && shape_of(graph, node, kBias) != Shape{c_out}) {
    throw invalid("{} has shape {}; out_channels is {}", graph[node.in[kBias]].name,
                  to_string(shape_of(graph, node, kBias)), c_out);
  }
}

DeclaredKernel declared_kernel(const Node& node, std::string_view name, size_t spatial) {
  if (!node.attrs.has("channels") || !node.attrs.has("kernel")) {
    throw invalid("the shape of {} is missing: give the tensor, or write its size as in '{} {} 64 k3'", name,
                  node.op->name, name);
  }
  const DeclaredKernel kernel{node.attrs.ints("channels").front(), per_axis(node, "kernel", spatial, 1)};
  const int64_t groups = conv_groups(node);
  if (kernel.c_out < 1) throw invalid("out_channels is {}; it must be at least 1", kernel.c_out);
  if (groups < 1) throw invalid("groups is {}; it must be at least 1", groups);
  if (kernel.c_out % groups != 0)
    throw invalid("out_channels is {}, which groups = {} does not divide", kernel.c_out, groups);
  for (size_t a = 0; a < spatial; ++a) {
    if (kernel.extents[a] < 1)
      throw invalid("kernel_{} is {}; it must be at least 1", axis_suffix(a, spatial), kernel.extents[a]);
  }
  return kernel;
}

void convolution_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding,
                       void (*evaluate)(const Node&, Inputs, Tensor&), double terms, const Shape& tile) {
  // S = sum|x||k|, and what the operands' own errors add: sum (|x| ek + ex |k|).
  Tensor x{in[0]->shape, absolute(in[0]->data), {}}, k{in[kKernel]->shape, absolute(in[kKernel]->data), {}};
  Tensor magnitude{out.shape, std::vector<double>(out.data.size()), {}}, carried = magnitude;
  const std::array<const Tensor*, 3> plain = {&x, &k, nullptr};
  evaluate(node, plain, magnitude);
  const Tensor ex{x.shape, in[0]->err, {}}, ek{k.shape, in[kKernel]->err, {}};
  if (nonzero(ex.data)) {
    const std::array<const Tensor*, 3> operands = {&ex, &k, nullptr};
    evaluate(node, operands, carried);
  }
  Tensor from_k = magnitude;
  std::ranges::fill(from_k.data, 0.0);
  if (nonzero(ek.data)) {
    const std::array<const Tensor*, 3> operands = {&x, &ek, nullptr};
    evaluate(node, operands, from_k);
  }
  if (rounding.tiles) spread_over_tiles(magnitude.data, out.shape, tile);
  const double growth = (4 + 2 * std::sqrt(terms)) * rounding.unit + 2 * (rounding.product - rounding.unit);
  const int64_t voxels = count(out.shape) / std::max<int64_t>(1, out.shape[0] * out.shape[1]);
  for (size_t i = 0; i < out.data.size(); ++i) {
    const size_t co = (i / voxels) % out.shape[1];
    const double bias =
        in[kBias] ? std::fabs(in[kBias]->data[co]) * 4 * rounding.unit + in[kBias]->err[co] : 0;
    out.err[i] = growth * magnitude.data[i] + carried.data[i] + from_k.data[i] + bias;
  }
}

PlainConvAttrs plain_conv_attrs(const Node& node, size_t spatial) {
  PlainConvAttrs c{.stride = per_axis(node, "stride", spatial, 1),
                   .padding = per_axis(node, "padding", spatial, 0),
                   .padding_end = {},
                   .dilation = per_axis(node, "dilation", spatial, 1),
                   .groups = conv_groups(node),
                   .border = border_of(node)};
  c.padding_end = node.attrs.has("padding_end") ? per_axis(node, "padding_end", spatial, 0) : c.padding;
  return c;
}

PlainConvGeometry plain_conv_geometry(const Node& node, const Shape& in, const Shape& kernel) {
  PlainConvGeometry g;
  g.spatial = spatial_rank(in);
  const PlainConvAttrs attrs = plain_conv_attrs(node, g.spatial);
  g.batch = in[0];
  g.c_in = in[1];
  g.c_out = kernel[0];
  g.groups = attrs.groups;
  g.in.assign(in.begin() + 2, in.end());
  g.out.assign(node.shape.begin() + 2, node.shape.end());
  g.kernel.assign(kernel.begin() + 2, kernel.end());
  g.kernel.resize(g.spatial, 1);  // a matrix has no extents
  g.stride = attrs.stride;
  g.padding = attrs.padding;
  g.dilation = attrs.dilation;
  g.step = Shape(g.spatial, 1);
  g.border = attrs.border;
  return g;
}

PlainConvGeometry plain_conv_geometry(const Graph& graph, const Node& node) {
  return plain_conv_geometry(node, shape_of(graph, node, 0), shape_of(graph, node, kKernel));
}

// i = o s - p + k d is the transposed convolution's equation with input and output in each other's place.
int64_t plain_taps_total(const PlainConvGeometry& g, size_t axis) {
  if (g.border != Border::kZeros) return g.out[axis] * g.kernel[axis];
  ConvGeometry turned = g;
  std::swap(turned.in, turned.out);
  return taps_total(turned, axis);
}

std::vector<Operation> ops_conv() {
  Operation conv{.id = Op::kConv, .family = Family::kConvolution, .name = "conv"};
  conv.summary =
      "convolution; kernel is (C_out, C_in/groups, K...), `64 k3` declares its size, `pe` is the padding "
      "behind the end where it differs";
  conv.example = "conv kernel bias s2 p1";
  conv.args = {{.name = "weights", .kind = Arg::Kind::kTensor, .required = true},
               {.name = "bias", .kind = Arg::Kind::kTensor},
               {.name = "channels", .kind = Arg::Kind::kInts, .single = true},
               {.name = "kernel", .kind = Arg::Kind::kInts, .prefix = "k"},
               {.name = "stride", .kind = Arg::Kind::kInts, .prefix = "s"},
               {.name = "padding", .kind = Arg::Kind::kInts, .prefix = "p"},
               {.name = "padding_end", .kind = Arg::Kind::kInts, .prefix = "pe"},
               {.name = "dilation", .kind = Arg::Kind::kInts, .prefix = "d"},
               {.name = "groups", .kind = Arg::Kind::kInts, .prefix = "g", .single = true},
               {.name = "mode", .kind = Arg::Kind::kWord, .words = kBorderWords}};
  conv.shape = conv_shape;
  conv.evaluate = conv_evaluate;
  conv.bound = conv_bound;
  conv.reach = [](const Node&) { return Reach::kWindow; };
  conv.param_shape = conv_param_shape;

  // A 1x1 convolution: its kernel has no extents.
  Operation matmul = conv;
  matmul.id = Op::kMatmul;
  matmul.name = "matmul";
  matmul.summary = "a matrix (C_out, C_in) times the channels of each voxel, and a bias";
  matmul.example = "matmul weight bias";
  matmul.args = {{.name = "weights", .kind = Arg::Kind::kTensor, .required = true},
                 {.name = "bias", .kind = Arg::Kind::kTensor},
                 {.name = "channels", .kind = Arg::Kind::kInts, .single = true}};
  matmul.shape = matmul_shape;
  matmul.reach = [](const Node&) { return Reach::kChannels; };
  matmul.param_shape = matmul_param_shape;
  return {conv, matmul};
}

}  // namespace upweave
