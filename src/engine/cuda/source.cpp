#include "engine/cuda/source.h"

#include <array>
#include <cmath>
#include <set>

#include "engine/cuda/code.h"
#include "engine/cuda/device_forms.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"
#include "graph/ops/pools.h"

namespace upweave::cuda {
namespace {

constexpr std::array kUnary = {Op::kRelu,  Op::kTanh, Op::kSigmoid,  Op::kExp,
                               Op::kSwish, Op::kMish, Op::kHardswish};
constexpr std::array kBinary = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMinimum, Op::kMaximum};

template <size_t N>
bool among(const Node& node, const std::array<Op, N>& ops) {
  for (const Op op : ops) {
    if (is(node, op)) return true;
  }
  return false;
}

std::string binary(const Node& node, const std::string& a, const std::string& b) {
  if (is(node, Op::kAdd)) return fmt::format("({} + {})", a, b);
  if (is(node, Op::kSub)) return fmt::format("({} - {})", a, b);
  if (is(node, Op::kMul)) return fmt::format("({} * {})", a, b);
  if (is(node, Op::kDiv)) return fmt::format("({} / {})", a, b);
  return fmt::format("{}({}, {})", is(node, Op::kMinimum) ? "min_nan" : "max_nan", a, b);
}

// Which set of a norm over batch, instances or groups the element at `at` belongs to.
std::string set_index(const NormSets& sets, const std::string& at) {
  switch (sets.kind) {
    case NormSets::Kind::kBatch:
      return fmt::format("{}.x[1]", at);
    case NormSets::Kind::kInstance:
      return fmt::format("({0}.x[0] * {1} + {0}.x[1])", at, sets.channels);
    case NormSets::Kind::kGroup:
      return fmt::format("({0}.x[0] * {1} + {0}.x[1] / {2})", at, sets.groups, sets.channels / sets.groups);
    default:
      throw fail(Status::kInternal, "statistics of a norm by voxel or row are not kept");
  }
}

// for (int p2 = 0; ...) for each spatial axis of a window.
std::string window_loops(const Shape& window) {
  std::string text;
  for (size_t a = 0; a < window.size(); ++a)
    text += fmt::format("for (int p{0} = 0; p{0} < {1}; ++p{0}) ", a + 2, window[a]);
  return text;
}

}  // namespace

std::string number(double v) {
  if (std::isnan(v)) return "(kInf - kInf)";
  if (std::isinf(v) || std::fabs(v) > 3.4e38) return v > 0 ? "kInf" : "(-kInf)";
  const std::string text = fmt::format("{:.9g}", v);
  const std::string literal = text + (text.find_first_of(".e") == std::string::npos ? ".f" : "f");
  return v < 0 ? "(" + literal + ")" : literal;
}

std::string dims(const Shape& shape) {
  std::string text = "Dims<";
  for (size_t a = 0; a < 5; ++a) text += fmt::format("{}{}", a ? ", " : "", a < shape.size() ? shape[a] : 1);
  return text + ">";
}

const char* type_name(Dtype dtype) {
  return dtype == Dtype::kF16 ? "F16" : dtype == Dtype::kBF16 ? "BF16" : "float";
}

bool is_pointwise(const Node& node) {
  return device_form(node.op->id) || among(node, kUnary) || among(node, kBinary) ||
         is(node, Op::kLeakyRelu) || is(node, Op::kClamp) || is(node, Op::kHardtanh) || is(node, Op::kGelu) ||
         is(node, Op::kNormalize) || is(node, Op::kBatchNormGiven) ||
         (is(node, Op::kSoftmaxApply) && node.attrs.word("axes") == "space");
}

bool computable(const Node& node) {
  return is_pointwise(node) || is_pool(node) || is(node, Family::kMove) || is(node, Family::kWeights) ||
         is(node, Op::kAdjustMoments);
}

std::string Source::address(Id id) const {
  const Location& place = places[id];
  switch (place.kind) {
    case Location::Kind::kInput:
      return id == 0 ? "a.input" : fmt::format("a.more[{}]", id - 1);
    case Location::Kind::kOutput:
      return "a.output";
    case Location::Kind::kWorkspace:
      return fmt::format("(a.ws + {}ll)", place.offset);
    case Location::Kind::kPacked:
      return fmt::format("(a.packed + {}ll)", place.offset);
    default:
      throw fail(Status::kInternal, "node {} ({}) is not in memory", id, graph_[id].op->name);
  }
}

std::string Source::operand(Id id, const Shape& shape, const std::string& at) const {
  const Node& node = graph_[id];
  if (weights_[id]) {
    const Shape strides = broadcast_strides(node.shape, shape);
    std::string index;
    for (size_t a = 0; a < strides.size(); ++a) {
      if (strides[a] != 0)
        index += fmt::format("{}(i64){}.x[{}] * {}", index.empty() ? "" : " + ", at, a, strides[a]);
    }
    return fmt::format("load<{}>({}, {})", type(id), address(id), index.empty() ? "0" : index);
  }
  std::string place = "At{{";
  for (size_t a = 0; a < 5; ++a) {
    const bool one = a >= node.shape.size() || node.shape[a] == 1;
    place += fmt::format("{}{}", a ? ", " : "", one ? "0" : fmt::format("{}.x[{}]", at, a));
  }
  return fmt::format("v{}(a, {}}}}})", id, place);
}

std::string Source::pointwise(const Node& node, const std::string& x, const std::string& at,
                              const std::string& other) const {
  if (among(node, kUnary)) return fmt::format("f_{}({})", node.op->name, x);
  if (among(node, kBinary)) {
    const std::string y = node.in[1] == kNone ? number(node.attrs.real("value"))
                          : other.empty()     ? operand(node.in[1], node.shape, at)
                                              : other;
    return binary(node, x, y);
  }
  if (device_form(node.op->id)) {
    const auto [a, b] = numbers(node);
    const std::string y = node.in.size() < 2 ? number(a)
                          : other.empty()    ? operand(node.in[1], node.shape, at)
                                             : other;
    std::string z = number(b);
    if (is(node, Op::kSnake))
      z = fmt::format("{} + {}", node.in[2] == kNone ? y : operand(node.in[2], node.shape, at), z);
    return fmt::format("f_{}({}, {}, {})", node.op->name, x, y, z);
  }
  if (is(node, Op::kLeakyRelu))
    return fmt::format("f_leaky_relu({}, {})", x, number(node.attrs.real("slope")));
  if (is(node, Op::kClamp) || is(node, Op::kHardtanh)) {
    return fmt::format("f_clamp({}, {}, {})", x, number(node.attrs.real("lo")),
                       number(node.attrs.real("hi")));
  }
  if (is(node, Op::kGelu))
    return fmt::format("{}({})", node.attrs.flag("tanh") ? "f_gelu_tanh" : "f_gelu", x);
  if (is(node, Op::kNormalize)) {
    std::string y = fmt::format("({} - {}) * inv_sqrt({} + {})", x, moment(node, at, 0), moment(node, at, 1),
                                number(norm_eps(node)));
    if (node.in[2] != kNone) y = fmt::format("({}) * {}", y, operand(node.in[2], node.shape, at));
    if (node.in[3] != kNone) y = fmt::format("({}) + {}", y, operand(node.in[3], node.shape, at));
    return "(" + y + ")";
  }
  if (is(node, Op::kBatchNormGiven)) {
    std::string y = fmt::format("({} - {}) * inv_sqrt({} + {})", x, operand(node.in[1], node.shape, at),
                                operand(node.in[2], node.shape, at), number(norm_eps(node)));
    if (node.in[3] != kNone) y = fmt::format("({}) * {}", y, operand(node.in[3], node.shape, at));
    if (node.in[4] != kNone) y = fmt::format("({}) + {}", y, operand(node.in[4], node.shape, at));
    return "(" + y + ")";
  }
  if (is(node, Op::kSoftmaxApply)) {
    const std::string stats = address(node.in[1]),
                      set = fmt::format("({0}.x[0] * {1} + {0}.x[1])", at, node.shape[1]);
    return code("(f_exp($x - load<float>($stats, $set)) / load<float>($stats, $set + $sets))",
                {{"x", x}, {"stats", stats}, {"set", set}, {"sets", node.shape[0] * node.shape[1]}});
  }
  return "";
}

std::string Source::moment(const Node& node, const std::string& at, int which) const {
  const NormSets sets = norm_sets(node, graph_[node.in[0]].shape);
  return fmt::format("load<float>({}, {} + {})", address(node.in[1]), set_index(sets, at), which * sets.sets);
}

std::string Source::compute(Id id) const {
  const Node& node = graph_[id];
  const Shape& in = graph_[node.in[0]].shape;
  if (is_pool(node)) {
    const size_t spatial = spatial_rank(in);
    const auto [window, stride] = pool_attrs(node);
    std::string at = "At j = i; ";
    double size = 1;
    for (size_t a = 0; a < spatial; ++a) {
      at += fmt::format("j.x[{0}] = i.x[{0}] * {1} + p{0}; ", a + 2, stride[a]);
      size *= static_cast<double>(window[a]);
    }
    const std::string x = operand(node.in[0], in, "j");
    if (is(node, Op::kAvgPool)) {
      return fmt::format("float s = 0.f; {}{{ {}s += {}; }} return s * {};", window_loops(window), at, x,
                         number(1 / size));
    }
    // A channel whose sign is negative takes the other extreme: flip, take this one, flip back.
    const bool largest = is(node, Op::kMaxPool), has_sign = node.in[1] != kNone;
    const std::string flip = has_sign ? fmt::format("const float f = {} < 0.f ? -1.f : 1.f; ",
                                                    operand(node.in[1], node.shape, "i"))
                                      : "";
    return code("$flip$float s = $sign$kInf; $loops{ $at$s = $combine(s, $factor$$x); } return s$back;",
                {{"flip", flip},
                 {"sign", largest ? "-" : ""},
                 {"loops", window_loops(window)},
                 {"at", at},
                 {"combine", largest ? "max_nan" : "min_nan"},
                 {"factor", has_sign ? "f * " : ""},
                 {"x", x},
                 {"back", has_sign ? " * f" : ""}});
  }
  if (is(node, Op::kAdjustMoments)) {
    const double scale = node.attrs.real_or("scale", 1);
    const std::string shift = node.in[1] == kNone
                                  ? number(node.attrs.real_or("shift", 0))
                                  : fmt::format("load<{}>({}, i.x[1] % {})", type(node.in[1]),
                                                address(node.in[1]), count(graph_[node.in[1]].shape));
    return fmt::format("const float m = {}; return i.x[0] == 0 ? fmaf(m, {}, {}) : m * {};",
                       operand(node.in[0], in, "i"), number(scale), shift, number(scale * scale));
  }
  if (is(node, Family::kMove)) return move(node);
  if (is(node, Op::kWeightNorm)) {
    return code(
        "double s = 0; for (i64 k = 0; k < $size; ++k) { const double v = load<$type>($from, i.x[0] * "
        "$size$ll + k); s += v * v; } return (float)($v * (double)load<$gtype>($g, i.x[0]) / sqrt(s));",
        {{"size", count(in) / in[0]},
         {"type", type(node.in[0])},
         {"from", address(node.in[0])},
         {"v", operand(node.in[0], in, "i")},
         {"gtype", type(node.in[1])},
         {"g", address(node.in[1])}});
  }
  if (is(node, Op::kCenter)) {
    const size_t axis = in.size() == 1 ? 0 : 1;
    return fmt::format(
        "double s = 0; At j = i; for (int c = 0; c < {1}; ++c) {{ j.x[{0}] = c; s += {2}; }} "
        "return (float)({3} - s / {1});",
        axis, in[axis], operand(node.in[0], in, "j"), operand(node.in[0], in, "i"));
  }
  if (is(node, Op::kPoolTaps)) {
    const size_t spatial = in.size() - 2;
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
                       window_loops(window), at, operand(node.in[0], in, "j"), size);
  }
  return fmt::format("return {};", pointwise(node, operand(node.in[0], node.shape, "i"), "i"));
}

std::string Source::functions() const {
  std::string text;
  std::set<Op> written;
  for (const Node& node : graph_.nodes) {
    if (const char* body = device_form(node.op->id); body && written.insert(node.op->id).second)
      text += fmt::format("DEVICE float f_{}(float x, float a, float b) {{ {} }}\n", node.op->name, body);
  }
  // Loads first: an inlined value may read any of them.
  for (Id id = 0; id < graph_.size(); ++id) {
    const Location::Kind kind = places[id].kind;
    if (weights_[id] || kind == Location::Kind::kNone || kind == Location::Kind::kInline ||
        id == graph_.output)
      continue;
    const std::string function = fmt::format("DEVICE float v{}(const Args& a, const At& i)", id);
    if (!places[id].divided.empty()) {  // the text of its tiles has it
      text += function + ";\n";
      continue;
    }
    const Shape& shape = graph_[id].shape;
    std::string offset = dims(shape) + "::offset(i)";
    if (places[id].blocked) {
      Shape block = shape;
      block[1] /= 16;
      offset =
          fmt::format("{}::offset(At{{{{i.x[0], i.x[1] / 16, i.x[2], i.x[3], i.x[4]}}}}) * 16 + i.x[1] % 16",
                      dims(block));
    }
    text += fmt::format("{} {{ return load<{}>({}, {}); }}\n", function, type(id), address(id), offset);
  }
  for (Id id = 0; id < graph_.size(); ++id) {
    if (weights_[id] || places[id].kind != Location::Kind::kInline) continue;
    text += fmt::format("DEVICE float v{}(const Args& a, const At& i) {{ {} }}\n", id, compute(id));
  }
  return text;
}

}  // namespace upweave::cuda
