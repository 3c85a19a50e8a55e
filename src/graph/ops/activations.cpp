#include <cmath>
#include <limits>

#include "graph/operation.h"

// Pointwise functions of one value: y = f(x). A row says f, its steepest slope and whether it never
// decreases.
namespace upweave {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Shape same_shape(const Graph& graph, const Node& node) { return shape_of(graph, node, 0); }
Reach point(const Node&) { return Reach::kPoint; }
bool always(const Node&) { return true; }

template <class F>
void map(Inputs in, Tensor& out, F f) {
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = f(in[0]->data[i]);
}

// |f(x + e) - f(x)| <= slope * e; an implementation is off by a few ulp of y and, where y is a difference of
// larger terms, of x.
void slope_bound(Inputs in, Tensor& out, const Rounding& rounding, double slope, double of_x = 0) {
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double x = in[0]->data[i];
    out.err[i] = slope * in[0]->err[i] + rounding.unit * (4 * std::fabs(out.data[i]) + of_x * std::fabs(x));
  }
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
// x * g(x) with g -> 0 at -inf: the limit there is 0 for gelu, swish and mish, but PyTorch computes the
// product and gets NaN from -inf * 0.
double gelu_erf(double x) { return x * (0.5 * std::erfc(-x * M_SQRT1_2)); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// NaN stays NaN through every comparison below, as in PyTorch; so does a limit that is NaN.
double clamp(double x, double lo, double hi) {
  for (const double v : {x, lo, hi}) {
    if (std::isnan(v)) return v;
  }
  return std::min(std::max(x, lo), hi);
}

Operation simple(Op id, std::string_view name, std::string_view summary,
                 void (*evaluate)(const Node&, Inputs, Tensor&),
                 void (*bound)(const Node&, Inputs, Tensor&, const Rounding&), bool monotone, double ops,
                 std::optional<Range> (*range)(const Node&) = nullptr) {
  Operation op{.id = id, .family = Family::kPointwise, .name = name};
  op.summary = summary;
  op.example = name;
  op.shape = same_shape;
  op.evaluate = evaluate;
  op.bound = bound;
  op.reach = point;
  op.ops_per_element = ops;
  if (monotone) op.monotone = always;
  op.range = range;
  return op;
}

}  // namespace

std::vector<Operation> ops_activations() {
  std::vector<Operation> ops;
  ops.push_back(simple(
      Op::kRelu, "relu", "max(x, 0)",
      [](const Node&, Inputs in, Tensor& out) { map(in, out, [](double x) { return x < 0 ? 0 : x; }); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1); }, true, 1,
      [](const Node&) -> std::optional<Range> {
        return Range{0, kInf};
      }));
  ops.push_back(simple(
      Op::kTanh, "tanh", "hyperbolic tangent",
      [](const Node&, Inputs in, Tensor& out) { map(in, out, [](double x) { return std::tanh(x); }); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1); }, true, 15,
      [](const Node&) -> std::optional<Range> {
        return Range{-1, 1};
      }));
  ops.push_back(simple(
      Op::kSigmoid, "sigmoid", "1 / (1 + exp(-x))",
      [](const Node&, Inputs in, Tensor& out) { map(in, out, sigmoid); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 0.25); }, true, 15,
      [](const Node&) -> std::optional<Range> {
        return Range{0, 1};
      }));
  ops.push_back(simple(
      Op::kExp, "exp", "e^x",
      [](const Node&, Inputs in, Tensor& out) { map(in, out, [](double x) { return std::exp(x); }); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) {
        for (size_t i = 0; i < out.data.size(); ++i) {
          const double e = in[0]->err[i] + r.unit * std::fabs(in[0]->data[i]);
          out.err[i] = out.data[i] * (std::expm1(e) + 4 * r.unit);
        }
      },
      true, 12,
      [](const Node&) -> std::optional<Range> {
        return Range{0, kInf};
      }));
  ops.push_back(simple(
      Op::kSwish, "swish", "x * sigmoid(x), also called SiLU",
      [](const Node&, Inputs in, Tensor& out) { map(in, out, [](double x) { return x * sigmoid(x); }); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.1); }, false,
      16));
  ops.push_back(simple(
      Op::kMish, "mish", "x * tanh(softplus(x))",
      [](const Node&, Inputs in, Tensor& out) {
        map(in, out, [](double x) { return x * std::tanh(softplus(x)); });
      },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.1, 1); }, false,
      30));
  ops.push_back(simple(
      Op::kHardswish, "hardswish", "x * clamp(x + 3, 0, 6) / 6",
      [](const Node&, Inputs in, Tensor& out) {
        map(in, out, [](double x) { return x * clamp(x + 3, 0, 6) / 6; });
      },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.5, 1); }, false,
      5));

  Operation gelu = simple(
      Op::kGelu, "gelu", "x * Phi(x), the exact erf form; `gelu tanh` is the approximation",
      [](const Node& node, Inputs in, Tensor& out) {
        if (node.attrs.flag("tanh"))
          map(in, out, gelu_tanh);
        else
          map(in, out, gelu_erf);
      },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.13, 4); }, false,
      20);
  gelu.args = {{.name = "tanh", .kind = Arg::Kind::kFlag}};
  ops.push_back(gelu);

  Operation leaky = simple(
      Op::kLeakyRelu, "leaky_relu", "x where x >= 0, slope * x elsewhere",
      [](const Node& node, Inputs in, Tensor& out) {
        const double slope = node.attrs.real("slope");
        map(in, out, [&](double x) { return x < 0 ? slope * x : x; });
      },
      [](const Node& node, Inputs in, Tensor& out, const Rounding& r) {
        slope_bound(in, out, r, std::max(1.0, std::fabs(node.attrs.real("slope"))));
      },
      false, 2);
  leaky.example = "leaky_relu 0.2";
  leaky.args = {{.name = "slope", .kind = Arg::Kind::kReal, .required = true}};
  // A slope of 0 makes NaN of -inf, so it does not count as monotone.
  leaky.monotone = [](const Node& node) { return node.attrs.real("slope") > 0; };
  ops.push_back(leaky);

  // clamp_min > clamp_max: everything becomes clamp_max, as in PyTorch. hardtanh is the same function.
  Operation clamping = simple(
      Op::kClamp, "clamp", "limits x to [lo, hi]; inf leaves a side open",
      [](const Node& node, Inputs in, Tensor& out) {
        map(in, out, [&](double x) { return clamp(x, node.attrs.real("lo"), node.attrs.real("hi")); });
      },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1); }, true, 2,
      [](const Node& node) -> std::optional<Range> {
        return Range{std::min(node.attrs.real("lo"), node.attrs.real("hi")), node.attrs.real("hi")};
      });
  clamping.example = "clamp 0 1";
  clamping.args = {{.name = "lo", .kind = Arg::Kind::kReal, .required = true},
                   {.name = "hi", .kind = Arg::Kind::kReal, .required = true}};
  ops.push_back(clamping);
  clamping.id = Op::kHardtanh;
  clamping.name = "hardtanh";
  clamping.example = "hardtanh -1 1";
  clamping.summary = "clamp under PyTorch's other name";
  ops.push_back(clamping);
  return ops;
}

}  // namespace upweave
