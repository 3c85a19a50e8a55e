#include <cmath>
#include <limits>

#include "graph/operation.h"

// Pointwise functions of one value: y = f(x; a, b). A row says f, how far f moves when x does, and what laws
// may take for granted.
namespace upweave {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Shape same_shape(const Graph& graph, const Node& node) { return shape_of(graph, node, 0); }
Reach point(const Node&) { return Reach::kPoint; }
bool always(const Node&) { return true; }

// |f(x + e) - f(x)| <= slope * e; an implementation is off by a few ulp of y and, where y is a difference of
// larger terms, of x.
void slope_bound(Inputs in, Tensor& out, const Rounding& rounding, double slope, double of_x = 0) {
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double x = in[0]->data[i];
    out.err[i] = slope * in[0]->err[i] + rounding.unit * (4 * std::fabs(out.data[i]) + of_x * std::fabs(x));
  }
}

// log(1 + e^(beta x)) / beta moves by sigmoid(beta x) times what x does; beta and beta x are rounded. Behind
// the threshold it is x, less by log(1 + e^-threshold) / beta: near it the result may be on either side.
void softplus_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const auto [beta, threshold] = numbers(node);
  const double step = std::log1p(std::exp(-threshold)) / std::fabs(beta), u = rounding.unit;
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double x = in[0]->data[i], t = beta * x, slope = 1 / (1 + std::exp(-t));
    const double moved = std::fabs(beta) * in[0]->err[i] + 2 * u * std::fabs(t);
    out.err[i] = in[0]->err[i] + u * (10 * std::fabs(out.data[i]) + 2 * slope * std::fabs(x));
    if (std::fabs(t - threshold) <= moved) out.err[i] += step;
  }
}

// sqrt(x) - sqrt(x - e) = e / (sqrt(x) + sqrt(x - e)). Where x - e is negative the result may be NaN.
void sqrt_bound(const Node&, Inputs in, Tensor& out, const Rounding& rounding) {
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double y = out.data[i], e = in[0]->err[i], least = in[0]->data[i] - e;
    const double moved = e == 0 ? 0 : least < 0 ? kInf : e / (y + std::sqrt(least));
    out.err[i] = moved + 2 * rounding.unit * y;
  }
}

// |p| t^(p - 1) is largest at one end of what |x| may be; a power that is no whole number is NaN below 0, one
// that is negative has its pole at 0. The logarithm of x is multiplied by p, which is rounded.
void pow_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const double p = numbers(node).a;
  for (size_t i = 0; i < out.data.size(); ++i) {
    const double x = in[0]->data[i], e = in[0]->err[i], far = std::fabs(x) + e, near = std::fabs(x) - e;
    const bool breaks = near <= 0 && (p < 1 || (p != std::floor(p) && x - e < 0)) && p != 0;
    const auto slope = [&](double t) { return std::fabs(p) * std::pow(t, p - 1); };
    const double moved = e == 0 ? 0 : breaks ? kInf : e * std::max(slope(far), slope(std::max(near, 0.0)));
    const double turned = x == 0 ? 0 : std::fabs(p * std::log(std::fabs(x)));
    out.err[i] = moved + (16 + 4 * turned) * rounding.unit * std::fabs(out.data[i]);
  }
}

// A half is the square root, as in PyTorch: of -inf it is NaN.
double power_of(double x, double p, double) {
  return p == 0.5 ? std::sqrt(x) : p == -0.5 ? 1 / std::sqrt(x) : std::pow(x, p);
}

double relu(double x, double, double) { return x < 0 ? 0 : x; }
double sigmoid(double x, double, double) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
// x * g(x) with g -> 0 at -inf: the limit there is 0 for gelu, swish and mish, but PyTorch computes the
// product and gets NaN from -inf * 0.
double swish(double x, double, double) { return x * sigmoid(x, 0, 0); }
double mish(double x, double, double) { return x * std::tanh(x > 20 ? x : std::log1p(std::exp(x))); }
double gelu(double x, double tanh, double) {
  if (tanh == 0) return x * (0.5 * std::erfc(-x * M_SQRT1_2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double elu(double x, double alpha, double) { return x > 0 ? x : alpha * std::expm1(x); }
double softplus(double x, double beta, double threshold) {
  return x * beta > threshold ? x : std::log1p(std::exp(x * beta)) / beta;
}
double leaky_relu(double x, double slope, double) { return x < 0 ? slope * x : x; }

// NaN stays NaN through every comparison below, as in PyTorch; so does a limit that is NaN.
double clamp(double x, double lo, double hi) {
  for (const double v : {x, lo, hi}) {
    if (std::isnan(v)) return v;
  }
  return std::min(std::max(x, lo), hi);
}
double hardswish(double x, double, double) { return x * clamp(x + 3, 0, 6) / 6; }

Operation row(Op id, std::string_view name, std::string_view summary,
              double (*value)(double x, double a, double b),
              void (*bound)(const Node&, Inputs, Tensor&, const Rounding&), double ops) {
  Operation op{.id = id, .family = Family::kPointwise, .name = name};
  op.summary = summary;
  op.example = name;
  op.shape = same_shape;
  op.value = value;
  op.evaluate = evaluate_pointwise;
  op.bound = bound;
  op.reach = point;
  op.ops_per_element = ops;
  return op;
}

}  // namespace

std::vector<Operation> ops_activations() {
  const auto slope_1 = [](const Node&, Inputs in, Tensor& out, const Rounding& r) {
    slope_bound(in, out, r, 1);
  };

  Operation rectify = row(Op::kRelu, "relu", "max(x, 0)", relu, slope_1, 1);
  rectify.monotone = always;
  rectify.range = [](const Node&) -> std::optional<Range> { return Range{0, kInf}; };

  Operation tanh = row(
      Op::kTanh, "tanh", "hyperbolic tangent", [](double x, double, double) { return std::tanh(x); }, slope_1,
      15);
  tanh.monotone = always;
  tanh.range = [](const Node&) -> std::optional<Range> { return Range{-1, 1}; };

  Operation logistic = row(
      Op::kSigmoid, "sigmoid", "1 / (1 + exp(-x))", sigmoid,
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 0.25); }, 15);
  logistic.monotone = always;
  logistic.range = [](const Node&) -> std::optional<Range> { return Range{0, 1}; };

  Operation exp = row(
      Op::kExp, "exp", "e^x", [](double x, double, double) { return std::exp(x); },
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) {
        for (size_t i = 0; i < out.data.size(); ++i) {
          const double e = in[0]->err[i] + r.unit * std::fabs(in[0]->data[i]);
          out.err[i] = out.data[i] * (std::expm1(e) + 4 * r.unit);
        }
      },
      12);
  exp.monotone = always;
  exp.range = [](const Node&) -> std::optional<Range> { return Range{0, kInf}; };

  const Operation silu = row(
      Op::kSwish, "swish", "x * sigmoid(x), also called SiLU", swish,
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.1); }, 16);
  const Operation smooth = row(
      Op::kMish, "mish", "x * tanh(softplus(x))", mish,
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.1, 1); }, 30);
  const Operation hard = row(
      Op::kHardswish, "hardswish", "x * clamp(x + 3, 0, 6) / 6", hardswish,
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.5, 1); }, 5);

  Operation gaussian = row(
      Op::kGelu, "gelu", "x * Phi(x), the exact erf form; `gelu tanh` is the approximation", gelu,
      [](const Node&, Inputs in, Tensor& out, const Rounding& r) { slope_bound(in, out, r, 1.13, 4); }, 20);
  gaussian.args = {{.name = "tanh", .kind = Arg::Kind::kFlag}};

  Operation leaky = row(
      Op::kLeakyRelu, "leaky_relu", "x where x >= 0, slope * x elsewhere", leaky_relu,
      [](const Node& node, Inputs in, Tensor& out, const Rounding& r) {
        slope_bound(in, out, r, std::max(1.0, std::fabs(numbers(node).a)));
      },
      2);
  leaky.example = "leaky_relu 0.2";
  leaky.args = {{.name = "slope", .kind = Arg::Kind::kReal, .required = true}};
  // A slope of 0 makes NaN of -inf, so it does not count as monotone.
  leaky.monotone = [](const Node& node) { return numbers(node).a > 0; };

  Operation exponential = row(
      Op::kElu, "elu", "x where x > 0, alpha (e^x - 1) elsewhere; alpha is 1 unless said", elu,
      [](const Node& node, Inputs in, Tensor& out, const Rounding& r) {
        slope_bound(in, out, r, std::max(1.0, std::fabs(numbers(node).a)));
      },
      16);
  exponential.args = {{.name = "alpha", .kind = Arg::Kind::kReal, .fallback = 1}};
  exponential.monotone = [](const Node& node) {
    return numbers(node).a >= 0 && std::isfinite(numbers(node).a);
  };

  Operation soft = row(Op::kSoftplus, "softplus",
                       "log(1 + e^(beta x)) / beta, and x where beta x > threshold; 1 and 20 unless said",
                       softplus, softplus_bound, 30);
  soft.args = {{.name = "beta", .kind = Arg::Kind::kReal, .named = true, .fallback = 1},
               {.name = "threshold", .kind = Arg::Kind::kReal, .named = true, .fallback = 20}};

  const Operation sine = row(
      Op::kSin, "sin", "sine", [](double x, double, double) { return std::sin(x); }, slope_1, 20);

  Operation magnitude = row(
      Op::kAbs, "abs", "|x|", [](double x, double, double) { return std::fabs(x); }, slope_1, 1);
  magnitude.range = rectify.range;

  // Not monotone: the root of a negative x is NaN, which a pool before it would not pick.
  const Operation root = row(
      Op::kSqrt, "sqrt", "square root", [](double x, double, double) { return std::sqrt(x); }, sqrt_bound, 5);

  Operation power = row(Op::kPow, "pow", "x to the power of a number", power_of, pow_bound, 20);
  power.example = "pow 2";
  power.args = {{.name = "exponent", .kind = Arg::Kind::kReal, .required = true}};

  // clamp_min > clamp_max: everything becomes clamp_max, as in PyTorch. hardtanh is the same function.
  Operation clamping =
      row(Op::kClamp, "clamp", "limits x to [lo, hi]; inf leaves a side open", clamp, slope_1, 2);
  clamping.example = "clamp 0 1";
  clamping.args = {{.name = "lo", .kind = Arg::Kind::kReal, .required = true},
                   {.name = "hi", .kind = Arg::Kind::kReal, .required = true}};
  clamping.monotone = always;
  clamping.range = [](const Node& node) -> std::optional<Range> {
    const auto [lo, hi] = numbers(node);
    return Range{std::min(lo, hi), hi};
  };
  Operation hardtanh = clamping;
  hardtanh.id = Op::kHardtanh;
  hardtanh.name = "hardtanh";
  hardtanh.example = "hardtanh -1 1";
  hardtanh.summary = "clamp under PyTorch's other name";

  return {rectify,     tanh, logistic, exp,       silu, smooth, hard,     gaussian, leaky,
          exponential, soft, sine,     magnitude, root, power,  clamping, hardtanh};
}

}  // namespace upweave
