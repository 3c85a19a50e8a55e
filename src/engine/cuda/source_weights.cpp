// What packing makes of parameters, as device code: one element of the derived kernel or vector at a time.
// Sums are float64, as they are on the CPU.
#include "engine/cuda/code.h"
#include "engine/cuda/source.h"
#include "graph/ops/conv.h"

namespace upweave::cuda {
namespace {

int64_t product(const Shape& extents) {
  int64_t n = 1;
  for (const int64_t extent : extents) n *= extent;
  return n;
}

}  // namespace

std::string Source::derived(const Node& node) const {
  const Shape& in = graph_[node.in[0]].shape;
  const size_t spatial = in.size() > 2 ? in.size() - 2 : 0;
  const auto first = [&](const char* at) { return operand(node.in[0], in, at); };
  // Element `index` of operand `slot`, a vector.
  const auto element = [&](size_t slot, const std::string& index) {
    return fmt::format("load<{}>({}, {})", type(node.in[slot]), address(node.in[slot]), index);
  };
  if (is(node, Op::kCenter)) {
    const size_t axis = in.size() == 1 ? 0 : 1;
    return fmt::format(
        "double s = 0; At j = i; for (int c = 0; c < {1}; ++c) {{ j.x[{0}] = c; s += {2}; }} "
        "return (float)({3} - s / {1});",
        axis, in[axis], first("j"), first("i"));
  }
  if (is(node, Op::kPoolTaps)) {
    const Shape window = per_axis(node, "window", spatial, 1),
                padding = per_axis(node, "padding", spatial, 0);
    std::string at = "At j = i; bool inside = true; ";
    double size = 1;
    for (size_t a = 0; a < spatial; ++a) {
      at += code(
          "j.x[$axis] = (i.x[$axis] - $first) * $window + $padding + p$axis; inside = inside && j.x[$axis] "
          ">= 0 && j.x[$axis] < "
          "$in; ",
          {{"axis", a + 2},
           {"first", (padding[a] + window[a] - 1) / window[a]},
           {"window", window[a]},
           {"padding", padding[a]},
           {"in", in[a + 2]}});
      size *= static_cast<double>(window[a]);
    }
    return fmt::format("double s = 0; {}{{ {}if (inside) s += {}; }} return (float)(s / {}.);",
                       window_loops(window), at, first("j"), size);
  }
  if (is(node, Op::kWeightNorm)) {
    return code(
        "double s = 0; for (i64 k = 0; k < $size; ++k) { const double v = load<$type>($from, i.x[0] * "
        "$size$ll + k); s += v * v; } return (float)($v * (double)load<$gtype>($g, i.x[0]) / sqrt(s));",
        {{"size", count(in) / in[0]},
         {"type", type(node.in[0])},
         {"from", address(node.in[0])},
         {"v", first("i")},
         {"gtype", type(node.in[1])},
         {"g", address(node.in[1])}});
  }
  if (is(node, Op::kFlip)) {
    std::string at;
    for (size_t a = 2; a < in.size(); ++a) at += fmt::format("j.x[{0}] = {1} - i.x[{0}]; ", a, in[a] - 1);
    return code("At j = i; j.x[0] = i.x[0] / $in * $out + i.x[1]; j.x[1] = i.x[0] % $in; $at return $x;",
                {{"in", in[1]}, {"out", node.shape[1]}, {"at", at}, {"x", first("j")}});
  }
  if (is(node, Op::kWidenTaps)) {
    const Shape scale = per_axis(node, "scale", spatial, 1);
    std::string at = "At j = i; bool inside = true; ";
    for (size_t a = 2; a < in.size(); ++a) {
      at += fmt::format("j.x[{0}] = i.x[{0}] - p{0}; inside = inside && j.x[{0}] >= 0 && j.x[{0}] < {1}; ", a,
                        in[a]);
    }
    return fmt::format("double s = 0; {}{{ {}if (inside) s += {}; }} return (float)s;", window_loops(scale),
                       at, first("j"));
  }
  if (is(node, Op::kShuffleTaps)) {
    const Shape scale = per_axis(node, "scale", spatial, 1);
    std::string at = "At j = i; int phase = 0; ";
    for (size_t a = 2; a < in.size(); ++a) {
      at += fmt::format("phase = phase * {1} + i.x[{0}] % {1}; j.x[{0}] = i.x[{0}] / {1}; ", a, scale[a - 2]);
    }
    return fmt::format("{}j.x[1] = i.x[1] * {} + phase; return {};", at, product(scale), first("j"));
  }
  if (is(node, Op::kScaleChannels)) {
    const bool one = product(graph_[node.in[1]].shape) == 1;
    const std::string channel = fmt::format("i.x[0] / {} * {} + i.x[1]", in[0] / conv_groups(node), in[1]);
    return fmt::format("return {} * {};", first("i"), element(1, one ? "0" : channel));
  }
  if (is(node, Op::kJoinChannels)) {
    const Shape& next = graph_[node.in[1]].shape;
    const bool vector = in.size() == 1, behind = vector || product(next) == next[0] * next[1];
    std::string at = vector ? "At j{{0, 0, 0, 0, 0}}, k = j; k.x[1] = i.x[0]; " : "At j = i, k = i; ";
    for (size_t a = 2; a < next.size() && !vector; ++a)
      at += fmt::format("{}.x[{}] = 0; ", behind ? "k" : "j", a);
    return code(
        "$at double s = 0; for (int m = 0; m < $inner; ++m) { j.x[$axis] = m; k.x[0] = m; s += (double)$a * "
        "$b; } return (float)s;",
        {{"at", at},
         {"inner", next[0]},
         {"axis", vector ? 0 : 1},
         {"a", first("j")},
         {"b", operand(node.in[1], next, "k")}});
  }
  if (is(node, Op::kNormScale)) {
    const std::string weight = node.in[1] == kNone ? "1." : element(1, "i.x[0]");
    return fmt::format("return (float)({} / sqrt((double){} + {:.17g}));", weight, element(0, "i.x[0]"),
                       node.attrs.real_or("eps", 1e-5));
  }
  if (is(node, Op::kNormShift)) {
    const std::string bias = node.in[2] == kNone ? "0." : element(2, "i.x[0]"),
                      before = node.in[3] == kNone ? "0." : element(3, "i.x[0]");
    return fmt::format("return (float)({} - ((double){} - {}) * {});", bias, element(0, "i.x[0]"), before,
                       element(1, "i.x[0]"));
  }
  throw fail(Status::kUnsupported, "the CUDA engine has no {}", node.op->name);
}

}  // namespace upweave::cuda
