#include "graph/ops/norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

// layer_norm, batch_norm, group_norm, instance_norm: y = (x - mean) / sqrt(var + eps) * weight + bias, with
// the biased variance of each set; rms_norm, whose mean is 0; batch_norm_given, whose statistics are given;
// and the pieces that rewrites split norms into.
namespace upweave {
namespace {

Shape check_affine(const Graph& graph, const Node& node, size_t slot) {
  const Shape& x = shape_of(graph, node, 0);
  const NormSets sets = norm_sets(node, x);
  for (; slot < node.in.size(); ++slot) {
    if (node.in[slot] == kNone) continue;
    const Shape& given = shape_of(graph, node, slot);
    const Node& tensor = graph[node.in[slot]];
    const int64_t expected = sets.kind == NormSets::Kind::kLast ? sets.trailing : x[1];
    if (count(given) != expected) {
      throw invalid("{} of {} has shape {}; it must hold {} values", tensor.name, node.op->name,
                    to_string(given), expected);
    }
  }
  if (!(norm_eps(node) >= 0) || std::isinf(norm_eps(node))) {
    throw invalid("eps of {} is {}; it must be a number that is not negative", node.op->name, norm_eps(node));
  }
  if ((sets.kind == NormSets::Kind::kBatch || sets.kind == NormSets::Kind::kInstance) && sets.size == 1) {
    throw invalid("{} has statistics over a single value: the value it meets has shape {}", node.op->name,
                  to_string(x));
  }
  return x;
}

Shape affine_shape(const Graph& graph, const Node& node, size_t slot) {
  const Shape& x = shape_of(graph, node, 0);
  if (slot == 0 || norm_sets(node, x).kind != NormSets::Kind::kLast) return {x[1]};
  return Shape(x.end() - norm_attrs(node).count, x.end());
}

struct Moments {
  std::vector<double> mean, var;
};

// Two passes: the mean first, then the squares of what is left.
Moments moments_of(const NormSets& sets, const std::vector<double>& x) {
  Moments m{std::vector<double>(sets.sets), std::vector<double>(sets.sets)};
  const double n = static_cast<double>(sets.size);
  for (size_t i = 0; i < x.size(); ++i) m.mean[sets.of(i)] += x[i];
  for (double& v : m.mean) v /= n;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = x[i] - m.mean[sets.of(i)];
    m.var[sets.of(i)] += d * d;
  }
  for (double& v : m.var) v /= n;
  return m;
}

// Which weight an element meets: its channel's, or its place in the trailing axes.
int64_t affine_index(const NormSets& sets, int64_t i) {
  return sets.kind == NormSets::Kind::kLast ? i % sets.trailing : i / sets.voxels % sets.channels;
}

void apply(const Node& node, const NormSets& sets, const Moments& m, const Tensor* weight, const Tensor* bias,
           const Tensor& x, Tensor& out) {
  const double eps = norm_attrs(node).eps;
  for (size_t i = 0; i < out.data.size(); ++i) {
    const int64_t s = sets.of(i), c = affine_index(sets, i);
    double y = (x.data[i] - m.mean[s]) / std::sqrt(m.var[s] + eps);
    if (weight) y *= weight->data[c];
    if (bias) y += bias->data[c];
    out.data[i] = y;
  }
}

// mean(x^2) where a variance would be: layer norm of values whose mean is zero.
Moments squares_of(const NormSets& sets, const std::vector<double>& x) {
  Moments m{std::vector<double>(sets.sets), std::vector<double>(sets.sets)};
  for (size_t i = 0; i < x.size(); ++i) m.var[sets.of(i)] += x[i] * x[i] / static_cast<double>(sets.size);
  return m;
}

void norm_evaluate(const Node& node, Inputs in, Tensor& out) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  apply(node, sets, moments_of(sets, in[0]->data), in[1], in[2], *in[0], out);
}

// With e the error of x and u the unit: the mean moves by dm = mean(e) + 16u mean|x|, each deviation by
// di = ei + dm, the variance by dv = mean(2 |x - m| di + di^2) + 16u var. A mean that is 0 does not move.
Moments moments_error(const NormSets& sets, const Moments& m, const Tensor& x, double u,
                      bool zero_mean = false) {
  const double n = static_cast<double>(sets.size);
  Moments error{std::vector<double>(sets.sets), std::vector<double>(sets.sets)};
  for (size_t i = 0; !zero_mean && i < x.data.size(); ++i)
    error.mean[sets.of(i)] += (x.err[i] + 16 * u * std::fabs(x.data[i])) / n;
  for (size_t i = 0; i < x.data.size(); ++i) {
    const int64_t s = sets.of(i);
    const double d = std::fabs(x.data[i] - m.mean[s]), di = x.err[i] + error.mean[s];
    error.var[s] += (2 * d * di + di * di + 16 * u * d * d) / n;
  }
  return error;
}

// 1/sqrt(var + eps) moves relatively by dv / (2 (var + eps - dv)).
void norm_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const Tensor& x = *in[0];
  const NormSets sets = norm_sets(node, x.shape);
  const bool rms = is(node, Op::kRmsNorm);
  const Moments m = rms ? squares_of(sets, x.data) : moments_of(sets, x.data);
  const double n = static_cast<double>(sets.size), u = rounding.unit, eps = norm_eps(node);
  const auto [dm, dv] = moments_error(sets, m, x, u, rms);
  for (size_t i = 0; i < out.data.size(); ++i) {
    const int64_t s = sets.of(i), c = affine_index(sets, i);
    const double left = m.var[s] + eps - dv[s], rstd = 1 / std::sqrt(std::max(left, eps));
    const double relative = dv[s] / (2 * std::max(left, eps)) + 4 * u;
    const double y = (x.data[i] - m.mean[s]) / std::sqrt(m.var[s] + eps);
    // Whatever was normalised, what comes out of n values is sqrt(n) at most. A sum of squares that overflows
    // leaves nothing else to say: in float32 all n become 0.
    const double most = std::fabs(y) + std::sqrt(n) * (1 + 32 * u);
    double err = n * (m.var[s] + dv[s]) > rounding.largest
                     ? most
                     : std::min((x.err[i] + dm[s]) * rstd + std::fabs(y) * relative, most);
    if (in[1]) err = err * std::fabs(in[1]->data[c]) + std::fabs(y) * in[1]->err[c];
    if (in[2]) err += in[2]->err[c] + 2 * u * std::fabs(in[2]->data[c]);
    out.err[i] = err + 2 * u * std::fabs(out.data[i]);
  }
}

// Moments leave as {2, sets}: means, then variances.
void moments_evaluate(const Node& node, Inputs in, Tensor& out) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  const Moments m = moments_of(sets, in[0]->data);
  std::copy(m.mean.begin(), m.mean.end(), out.data.begin());
  std::copy(m.var.begin(), m.var.end(), out.data.begin() + sets.sets);
}

void moments_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  const Moments error = moments_error(sets, moments_of(sets, in[0]->data), *in[0], rounding.unit);
  std::copy(error.mean.begin(), error.mean.end(), out.err.begin());
  std::copy(error.var.begin(), error.var.end(), out.err.begin() + sets.sets);
}

// Of s x + b, from those of x: (s mean + b, s^2 var). b is a number, or one for each channel.
void adjust_evaluate(const Node& node, Inputs in, Tensor& out) {
  const double scale = node.attrs.real_or("scale", 1);
  const size_t sets = out.data.size() / 2;
  for (size_t s = 0; s < sets; ++s) {
    const double shift = in[1] ? in[1]->data[s % in[1]->data.size()] : node.attrs.real_or("shift", 0);
    out.data[s] = in[0]->data[s] * scale + shift;
    out.data[sets + s] = in[0]->data[sets + s] * scale * scale;
  }
}

void normalize_evaluate(const Node& node, Inputs in, Tensor& out) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  const std::vector<double>& stats = in[1]->data;
  const Moments m{{stats.begin(), stats.begin() + sets.sets}, {stats.begin() + sets.sets, stats.end()}};
  apply(node, sets, m, in[2], in[3], *in[0], out);
}

// y = x / sqrt(mean(x^2) + eps) * weight + bias
void rms_evaluate(const Node& node, Inputs in, Tensor& out) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  apply(node, sets, squares_of(sets, in[0]->data), in[1], in[2], *in[0], out);
}

// Given statistics: mean, variance, weight and bias have a value a channel each.
Shape given_shape(const Graph& graph, const Node& node) {
  const Shape& x = shape_of(graph, node, 0);
  for (size_t slot = 1; slot < node.in.size(); ++slot) {
    if (node.in[slot] == kNone || shape_of(graph, node, slot) == Shape{x[1]}) continue;
    throw invalid("{} of batch_norm_given has shape {}; it must hold {} values", node.op->args[slot - 1].name,
                  to_string(shape_of(graph, node, slot)), x[1]);
  }
  if (const double eps = norm_eps(node); !(eps >= 0) || std::isinf(eps))
    throw invalid("eps of batch_norm_given is {}; it must be a number that is not negative", eps);
  return x;
}

void given_evaluate(const Node& node, Inputs in, Tensor& out) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  apply(node, sets, {in[1]->data, in[2]->data}, in[3], in[4], *in[0], out);
}

// As written or as x s + t, s = weight / sqrt(var + eps), t = bias - mean s: the terms x s, mean s and bias
// are rounded, and 1/sqrt(var + eps) moves relatively by half of what var + eps does.
void given_bound(const Node& node, Inputs in, Tensor& out, const Rounding& rounding) {
  const NormSets sets = norm_sets(node, in[0]->shape);
  const double u = rounding.unit, eps = norm_eps(node);
  for (size_t i = 0; i < out.data.size(); ++i) {
    const int64_t c = affine_index(sets, static_cast<int64_t>(i));
    const double x = in[0]->data[i], mean = in[1]->data[c], var = in[2]->data[c] + eps;
    const double dv = in[2]->err[c] + u * (std::fabs(in[2]->data[c]) + eps), left = var - dv;
    if (!(left > 0)) {
      out.err[i] = std::numeric_limits<double>::infinity();
      continue;
    }
    const double rstd = 1 / std::sqrt(left), weight = in[3] ? std::fabs(in[3]->data[c]) : 1;
    const double terms = (std::fabs(x) + std::fabs(mean)) * rstd, relative = dv / (2 * left) + 6 * u;
    double err = ((in[0]->err[i] + in[1]->err[c]) * rstd + terms * relative) * weight;
    if (in[3]) err += terms * in[3]->err[c];
    if (in[4]) err += in[4]->err[c] + 2 * u * std::fabs(in[4]->data[c]);
    out.err[i] = err + 2 * u * std::fabs(out.data[i]);
  }
}

Reach norm_reach(const Node& node) {
  const std::string_view axes = norm_attrs(node).axes;
  if (axes == "channel") return Reach::kChannels;
  if (axes == "last") return Reach::kRow;
  return axes == "batch" ? Reach::kBatch : Reach::kSpace;
}

const Arg kWeight{.name = "weight", .kind = Arg::Kind::kTensor},
    kBias{.name = "bias", .kind = Arg::Kind::kTensor},
    kEps{.name = "eps", .kind = Arg::Kind::kReal, .named = true};

Operation row(Op id, std::string_view name, std::string_view summary, std::string_view example,
              std::vector<Arg> args) {
  Operation op{.id = id, .family = Family::kNorm, .name = name};
  op.summary = summary;
  op.example = example;
  op.args = std::move(args);
  for (const Arg& arg : {kWeight, kBias, kEps}) op.args.push_back(arg);
  op.shape = [](const Graph& graph, const Node& node) { return check_affine(graph, node, 1); };
  op.evaluate = norm_evaluate;
  op.bound = norm_bound;
  op.reach = norm_reach;
  op.param_shape = affine_shape;
  op.ops_per_element = 8;
  return op;
}

}  // namespace

NormAttrs norm_attrs(const Node& node) {
  auto integer = [&](std::string_view name, int64_t fallback) {
    return node.attrs.has(name) ? node.attrs.ints(name).front() : fallback;
  };
  return {.axes = is(node, Op::kBatchNorm) || is(node, Op::kBatchNormGiven) ? "batch"
                  : is(node, Op::kInstanceNorm)                             ? "instance"
                  : is(node, Op::kGroupNorm)                                ? "group"
                                             : std::string_view(node.attrs.word("axes")),
          .groups = integer("groups", 0),
          .count = integer("count", 1),
          .eps = node.attrs.real_or("eps", 1e-5)};
}

NormSets norm_sets(const Node& node, const Shape& shape) {
  using Kind = NormSets::Kind;
  NormSets s{Kind::kChannel, shape[1], 1, 1, 1, 0, 0};
  for (size_t a = 2; a < shape.size(); ++a) s.voxels *= shape[a];
  const NormAttrs attrs = norm_attrs(node);
  if (attrs.axes == "channel") {
    s.sets = shape[0] * s.voxels;
    s.size = s.channels;
  } else if (attrs.axes == "last") {
    s.kind = Kind::kLast;
    const int64_t last = attrs.count;
    if (last < 1 || last > static_cast<int64_t>(shape.size()) - 2) {
      throw invalid("{} is over the last {} axes; the value has {} spatial axes", node.op->name, last,
                    shape.size() - 2);
    }
    for (int64_t a = 0; a < last; ++a) s.trailing *= shape[shape.size() - 1 - a];
    s.sets = count(shape) / s.trailing;
    s.size = s.trailing;
  } else if (attrs.axes == "batch") {
    s.kind = Kind::kBatch;
    s.sets = s.channels;
    s.size = shape[0] * s.voxels;
  } else if (attrs.axes == "instance") {
    s.kind = Kind::kInstance;
    s.sets = shape[0] * s.channels;
    s.size = s.voxels;
  } else {
    s.kind = Kind::kGroup;
    s.groups = attrs.groups;
    if (s.groups < 1) throw invalid("num_groups is {}; it must be at least 1", s.groups);
    if (s.channels % s.groups != 0) {
      throw invalid("num_groups is {}, which does not divide the {} channels", s.groups, s.channels);
    }
    s.sets = shape[0] * s.groups;
    s.size = s.voxels * (s.channels / s.groups);
  }
  return s;
}

std::vector<Operation> ops_norms() {
  const Arg where{.name = "axes", .kind = Arg::Kind::kWord, .required = true, .words = {"channel", "last"}};
  const Arg trailing{.name = "count", .kind = Arg::Kind::kInts, .single = true};
  const Arg groups{.name = "groups", .kind = Arg::Kind::kInts, .required = true, .single = true};
  std::vector<Operation> ops = {
      row(Op::kLayerNorm, "layer_norm",
          "norm over channels at each voxel, or over the last axes (`last 2`: two of them)",
          "layer_norm channel", {where, trailing}),
      row(Op::kBatchNorm, "batch_norm",
          "norm of each channel over batch and space, with the batch's own statistics",
          "batch_norm weight bias", {}),
      row(Op::kGroupNorm, "group_norm", "norm of each sample's groups of channels over space",
          "group_norm 8 weight bias", {groups}),
      row(Op::kInstanceNorm, "instance_norm", "norm of each sample's channels over space",
          "instance_norm weight bias", {}),
  };

  Operation rms = row(Op::kRmsNorm, "rms_norm",
                      "x / sqrt(mean(x^2) + eps) over channels at each voxel, or over the last axes",
                      "rms_norm channel weight", {where, trailing});
  rms.evaluate = rms_evaluate;

  Operation given = row(Op::kBatchNormGiven, "batch_norm_given",
                        "norm of each channel with given statistics, as batch norm in inference",
                        "batch_norm_given mean var weight bias",
                        {{.name = "mean", .kind = Arg::Kind::kTensor, .required = true},
                         {.name = "var", .kind = Arg::Kind::kTensor, .required = true}});
  given.shape = given_shape;
  given.evaluate = given_evaluate;
  given.bound = given_bound;
  given.reach = [](const Node&) { return Reach::kPoint; };
  given.param_shape = nullptr;

  const std::vector<std::string_view> sets = {"batch", "instance", "group"};
  Operation moments{.id = Op::kMoments, .family = Family::kNorm, .name = "moments"};
  moments.summary =
      "mean and biased variance of each set that batch, instance or group norm has; never 16-bit";
  moments.example = "moments batch";
  moments.args = {{.name = "axes", .kind = Arg::Kind::kWord, .required = true, .words = sets},
                  {.name = "groups", .kind = Arg::Kind::kInts, .single = true}};
  moments.shape = [](const Graph& graph, const Node& node) {
    return Shape{2, norm_sets(node, shape_of(graph, node, 0)).sets};
  };
  moments.evaluate = moments_evaluate;
  moments.reach = norm_reach;
  moments.bound = moments_bound;
  moments.ops_per_element = 4;
  moments.internal = true;

  Operation adjust{.id = Op::kAdjustMoments, .family = Family::kNorm, .name = "adjust_moments"};
  adjust.summary = "moments of scale x + shift, from those of x";
  adjust.example = "adjust_moments bias";
  adjust.args = {{.name = "scale", .kind = Arg::Kind::kReal, .named = true},
                 {.name = "shift", .kind = Arg::Kind::kOperand}};
  adjust.shape = [](const Graph& graph, const Node& node) {
    const Shape& x = shape_of(graph, node, 0);
    if (x.size() != 2 || x[0] != 2)
      throw invalid("adjust_moments meets a value of shape {}; it must be moments", to_string(x));
    if (node.in[1] != kNone && x[1] % count(shape_of(graph, node, 1)) != 0)
      throw invalid("the shift of adjust_moments has shape {}; there are {} sets",
                    to_string(shape_of(graph, node, 1)), x[1]);
    return x;
  };
  adjust.evaluate = adjust_evaluate;
  adjust.reach = [](const Node&) { return Reach::kPoint; };
  adjust.internal = true;
  adjust.of_weights = true;  // two axes, not N C ...

  Operation normalize =
      row(Op::kNormalize, "normalize", "(x - mean) / sqrt(var + eps) * weight + bias with given moments",
          "normalize batch @m weight bias", {});
  normalize.args.insert(normalize.args.begin(),
                        {{.name = "axes", .kind = Arg::Kind::kWord, .required = true, .words = sets},
                         {.name = "groups", .kind = Arg::Kind::kInts, .single = true},
                         {.name = "moments", .kind = Arg::Kind::kTensor, .required = true}});
  normalize.shape = [](const Graph& graph, const Node& node) {
    const Shape& x = shape_of(graph, node, 0);
    const Shape expected{2, norm_sets(node, x).sets};
    if (shape_of(graph, node, 1) != expected) {
      throw invalid("the moments of normalize have shape {}; it must be {}",
                    to_string(shape_of(graph, node, 1)), to_string(expected));
    }
    return x;
  };
  normalize.evaluate = normalize_evaluate;
  normalize.bound = nullptr;
  normalize.reach = [](const Node&) { return Reach::kPoint; };
  normalize.internal = true;

  ops.push_back(rms);
  ops.push_back(given);
  ops.push_back(moments);
  ops.push_back(adjust);
  ops.push_back(normalize);
  return ops;
}

}  // namespace upweave
