#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/cuda/bounded_exp.h"
#include "engine/cuda/code.h"
#include "engine/cuda/epilogue_writer.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

// Values in registers: pointwise ones, and those made of all channels of a row.
namespace upweave::cuda {
namespace {

// What was computed from the sums is computed again, for there is no room to keep it beside them.
constexpr const char* kAfresh = "hold(sum[0]); hold(sum[1]);\n";

}  // namespace

std::string EpilogueWriter::value(Id id) {
  const Node& node = l_.graph[id];
  std::string x = read(node.in[0], node.shape);
  if (!is_pointwise(node)) {
    const std::string first = form_.recomputes && !norms_sums(node) ? replace_sums(id, x) : "";
    if (is(node, Op::kRmsNorm) || is(node, Op::kLayerNorm)) return first + norm_value(id, x);
    return first + (is(node, Op::kSoftmax) ? softmax_value(id, x) : channel_value(id, x));
  }
  const std::string expression = pointwise_value(node, x);
  if (f_.scalar[id]) {
    return fmt::format("float y{0}[PH];\n{1}{{ const int i = 0; (void)i; {2}y{0}[ph] = {3}; }}\n", id, kEach,
                       at_needed(expression), expression);
  }
  if (lazy()) return function(id, expression);
  return code("float y$id[PH][G::kN / 4];\n$phases$$columns{ $at$y$id[ph][i] = $y; }\n",
              {{"id", id},
               {"phases", kEach},
               {"columns", kColumns},
               {"at", at_needed(expression)},
               {"y", expression}});
}

std::string EpilogueWriter::pointwise_value(const Node& node, const std::string& x) {
  if (is(node, Op::kGelu) && !node.attrs.flag("tanh")) {
    if (f_.holds(node.in[0]) && feeds_gelu(node.in[0]))
      return fmt::format("{}({})", fast() ? "gelu_scaled_short" : "gelu_scaled", x);
    return fmt::format("{}({})", fast() ? "f_gelu_short" : "f_gelu_exact", x);
  }
  if (is(node, Op::kExp)) return exponential(node, x);
  // The tensor cores' sums are finite, so the modifier that makes 0 of NaN may clamp them.
  if (node.in[0] == f_.conv && (is(node, Op::kClamp) || is(node, Op::kHardtanh)) &&
      node.attrs.real("lo") == 0 && node.attrs.real("hi") == 1)
    return fmt::format("(fma ? {} : __saturatef({} * down))", l_.source.pointwise(node, x, "at", ""), sum());
  if (is(node, Op::kNormalize) &&
      (norm_sets(node, l_.graph[node.in[0]].shape).kind == NormSets::Kind::kBatch || form_.one_sample)) {
    const std::string mean = l_.source.moment(node, "at", 0), variance = l_.source.moment(node, "at", 1);
    std::string factor = fmt::format("inv_sqrt({} + {})", variance, number(norm_eps(node)));
    if (node.in[2] != kNone)
      factor = fmt::format("{} * {}", factor, l_.source.operand(node.in[2], node.shape, "at"));
    const std::string factors = constant(factor);  // each call numbers a constant: one after the other
    std::string y = fmt::format("({} - {}) * {}", x, constant(mean), factors);
    if (node.in[3] != kNone)
      y = fmt::format("({}) + {}", y, constant(l_.source.operand(node.in[3], node.shape, "at")));
    return "(" + y + ")";
  }
  if (const std::string factor = column_factor(node); !factor.empty()) {
    // Factors in a row become one: x / a * b = x (1/a b).
    const Node& before = l_.graph[node.in[0]];
    const std::string earlier = f_.holds(node.in[0]) && node.in[0] != f_.conv ? column_factor(before) : "";
    if (!earlier.empty())
      return fmt::format("({} * {})", read(before.in[0], before.shape), constant(earlier + " * " + factor));
    return fmt::format("({} * {})", x, constant(factor));
  }
  std::string other;
  if (node.in.size() > 1 && node.in[1] != kNone && !is(node, Op::kNormalize) && !is(node, Op::kSoftmaxApply))
    other = read(node.in[1], node.shape);
  return l_.source.pointwise(node, x, "at", other);
}

std::string EpilogueWriter::column_factor(const Node& node) const {
  if ((!is(node, Op::kDiv) && !is(node, Op::kMul)) || node.in[1] == kNone ||
      !one_a_column(node.in[1], node.shape))
    return "";
  return (is(node, Op::kDiv) ? "1.f / " : "") + l_.source.operand(node.in[1], node.shape, "at");
}

std::string EpilogueWriter::exponential(const Node& node, const std::string& x) {
  Id z = node.in[0];
  double a = 1, b = 0;
  for (; f_.holds(z) && z != f_.conv && l_.graph[z].in.size() > 1 && l_.graph[z].in[1] == kNone;
       z = l_.graph[z].in[0]) {
    const Node& step = l_.graph[z];
    if (!step.attrs.has("value")) break;
    const double value = step.attrs.real("value");
    if (is(step, Op::kAdd))
      b += a * value;
    else if (is(step, Op::kSub))
      b -= a * value;
    else if (is(step, Op::kMul))
      a *= value;
    else
      break;
  }
  if (!f_.holds(z) || !std::isfinite(a) || !std::isfinite(b)) a = 1, b = 0, z = node.in[0];
  const std::string base = read(z, node.shape);
  const std::string power = fmt::format("exp2_fast(fmaf({}, {}, {}))", base, number(a * std::numbers::log2e),
                                        number(b * std::numbers::log2e));
  const std::string hardware = fast() ? power : fmt::format("f_exp({})", x);
  // Of a bounded value, counted from the bound with the least exponent: t = z - lo or hi - z.
  const Operation& op = *l_.graph[z].op;
  const std::optional<Range> range = op.range && z != f_.conv ? op.range(l_.graph[z]) : std::nullopt;
  if (!range || !std::isfinite(range->lo) || !std::isfinite(range->hi) || a == 0) return hardware;
  // What float32 leaves of an exponent up to two is within half an ulp of the result, and the special
  // function unit is what expf ends with.
  const double most = std::max(std::fabs(a * range->lo + b), std::fabs(a * range->hi + b));
  if (!fast() && most * std::numbers::log2e <= 2) return power;
  const double least = a > 0 ? range->lo : range->hi;
  const std::vector<float> c =
      exp_polynomial(std::fabs(a), a * least + b, range->hi - range->lo, fast() ? 0x1p-20 : 0x1p-24);
  if (c.empty()) return hardware;
  const std::string t = a < 0        ? fmt::format("({} - {})", number(least), base)
                        : least == 0 ? base
                                     : fmt::format("({} - {})", base, number(least));
  std::string coefficients;
  for (const float value : c) coefficients += (coefficients.empty() ? "" : ", ") + number(value);
  const std::string polynomial = fmt::format("horner<{}>({{{}}}, {})", c.size(), coefficients, t);
  // Strict's exp takes more instructions than that. The one of `fast` takes two, of which the special
  // function unit is busy for eight cycles: a third of the values go round it.
  return fast() ? fmt::format("(i % 3 == 0 ? {} : {})", polynomial, hardware) : polynomial;
}

bool EpilogueWriter::feeds_gelu(Id id) const {
  const Node& node = l_.graph[id];
  if (!is(node, Op::kRmsNorm) || node.in[0] != f_.conv || node.in[1] != kNone || node.in[2] != kNone ||
      conv_.c_out > 128)
    return false;
  int readers = 0;
  for (const Id reader : f_.nodes) {
    const Node& other = l_.graph[reader];
    if (std::ranges::find(other.in, id) == other.in.end()) continue;
    ++readers;
    if (!is(other, Op::kGelu) || other.attrs.flag("tanh")) return false;
  }
  return readers == 1 && std::ranges::find(f_.stores, id) == f_.stores.end();
}

std::string EpilogueWriter::quad(const char* name, const std::string& start, const std::string& term,
                                 const char* combine) const {
  return code(
      "float $name = $start;\n$columns$$name = $combine($name, $term);\n"
      "$name = $combine($name, __shfl_xor_sync(~0u, $name, 1)); $name = $combine($name, __shfl_xor_sync(~0u, "
      "$name, 2));\n",
      {{"name", name}, {"start", start}, {"columns", kColumns}, {"term", term}, {"combine", combine}});
}

std::string EpilogueWriter::replace_sums(Id id, std::string& x) const {
  const auto at = std::ranges::find(f_.nodes, id);
  const bool last = std::all_of(f_.nodes.begin(), at, [&](Id before) {
    if (f_.scalar[before]) return true;
    return std::ranges::find(f_.stores, before) == f_.stores.end() &&
           std::all_of(at + 1, f_.nodes.end(), [&](Id later) {
             return std::ranges::find(l_.graph[later].in, before) == l_.graph[later].in.end();
           });
  });
  if (!last) return "";
  const std::string text = fmt::format("{}{{\n{}{} = {}; }}\n", kColumns, kEach, sum(), x);
  x = sum();
  return text + kAfresh;
}

bool EpilogueWriter::norms_sums(const Node& node) const {
  return is(node, Op::kRmsNorm) && node.in[0] == f_.conv;
}

std::string EpilogueWriter::norm_value(Id id, const std::string& x) {
  const Node& node = l_.graph[id];
  const bool mean = is(node, Op::kLayerNorm), raw = norms_sums(node);
  const std::string inverse = number(1.0 / conv_.c_out), eps = number(norm_eps(node));
  // Right behind the convolution the scale stays in: x^2 neither overflows nor vanishes, and a product is
  // saved.
  if (raw) {
    norm_state_ = fmt::format(
        "const bool norm_small = down <= 1.f;\n"
        "const float norm_a = norm_small ? {0} * down : {0}, norm_b = norm_small ? down : 1.f, norm_eps = "
        "norm_small ? {1} : {1} / down / down, norm_scale = (norm_small ? down : 1.f){2};\n",
        inverse, eps, feeds_gelu(id) ? " * kGeluScale" : "");
  }
  // m, the mean, and z, by which the difference from it is multiplied.
  const std::string difference = mean ? fmt::format("({} - m)", x) : raw ? sum() : x;
  std::string first, text;
  if (mean) first = quad("m", "0.f", masked(x, "0.f"), "add2") + fmt::format("m *= {};\n", inverse);
  text = fmt::format(
      "float q = 0.f;\n{}{{ const float e = {}; q = fmaf(e, e, q); }}\n"
      "q += __shfl_xor_sync(~0u, q, 1); q += __shfl_xor_sync(~0u, q, 2);\nconst float z = {};\n",
      kColumns, masked(difference, "0.f"),
      raw ? "norm_scale * inv_sqrt(fmaf(q * norm_a, norm_b, norm_eps))"
          : fmt::format("inv_sqrt(fmaf(q, {}, {}))", inverse, eps));
  // A function needs m and z of each phase later.
  std::string result = !form_.recomputes ? fmt::format("{} * z", difference)
                       : mean            ? fmt::format("({0} - m{1}[ph]) * z{1}[ph]", x, id)
                                         : fmt::format("{} * z{}[ph]", difference, id);
  if (node.in[1] != kNone) result = fmt::format("{} * {}", result, read(node.in[1], node.shape));
  if (node.in[2] != kNone) result = fmt::format("{} + {}", result, read(node.in[2], node.shape));
  if (form_.recomputes) {
    if (mean) {
      first = fmt::format("float m{0}[PH];\n{1}{{ {2}m{0}[ph] = m; }}\n{3}", id, kEach, first, kAfresh);
      text = fmt::format("const float m = m{}[ph];\n{}", id, text);
    }
    return first + fmt::format("float z{0}[PH];\n{1}{{ {2}z{0}[ph] = z; }}\n", id, kEach, text) +
           (raw ? "" : kAfresh) + function(id, result);
  }
  return code(
      "float y$id[PH][G::kN / 4];\n"
      "$phases{ $mean$$factor$$columns{ const At at = at_of(ph, i); (void)at; y$id[ph][i] = $y; } }\n",
      {{"id", id},
       {"phases", kEach},
       {"mean", first},
       {"factor", text},
       {"columns", kColumns},
       {"y", result}});
}

std::string EpilogueWriter::softmax_value(Id id, const std::string& x) {
  const std::string largest = quad("m", "-kInf", masked(x, "-kInf"), "max_nan"),
                    e = masked(fmt::format("f_exp({} - m)", x), "0.f");
  if (form_.recomputes) {
    // Where x took the place of the sums, so does its exponential.
    const bool place = x == sum();
    return code(
               "float m$id[PH], z$id[PH];\n$phases{ $largest$m$id[ph] = m; }\n$afresh$"
               "$phases{ const float m = m$id[ph]; float q = 0.f;\n$columns{ const float e = $e; $keep$q += "
               "e; }\n"
               "q += __shfl_xor_sync(~0u, q, 1); q += __shfl_xor_sync(~0u, q, 2);\nz$id[ph] = 1.f / q; "
               "}\n$afresh",
               {{"id", id},
                {"phases", kEach},
                {"largest", largest},
                {"afresh", kAfresh},
                {"columns", kColumns},
                {"e", e},
                {"keep", place ? fmt::format("{} = e; ", sum()) : ""}}) +
           function(id, place ? fmt::format("{} * z{}[ph]", sum(), id)
                              : fmt::format("f_exp({0} - m{1}[ph]) * z{1}[ph]", x, id));
  }
  const std::string sum_of = quad("q", "0.f", fmt::format("y{}[ph][i]", id), "add2");
  return code(
      "float y$id[PH][G::kN / 4];\n$phases{ $largest$$columns$y$id[ph][i] = $e;\n$sum$const float z = 1.f / "
      "q;\n"
      "$columns$y$id[ph][i] *= z; }\n",
      {{"id", id},
       {"phases", kEach},
       {"largest", largest},
       {"columns", kColumns},
       {"e", e},
       {"sum", sum_of}});
}

std::string EpilogueWriter::channel_value(Id id, const std::string& x) const {
  const Node& node = l_.graph[id];
  std::string text, result = "m";
  if (is(node, Op::kSum) || is(node, Op::kMean)) text = quad("m", "0.f", masked(x, "0.f"), "add2");
  if (is(node, Op::kMean)) result += " * " + number(1.0 / conv_.c_out);
  if (is(node, Op::kMax)) text = quad("m", "-kInf", masked(x, "-kInf"), "max_nan");
  if (is(node, Op::kMin)) text = quad("m", "kInf", masked(x, "kInf"), "min_nan");
  if (is(node, Op::kLogsumexp)) {
    text = quad("m", "-kInf", masked(x, "-kInf"), "max_nan") + "if (isinf(m)) m = 0.f;\n";
    if (form_.recomputes)
      text += fmt::format("y{0}[ph] = m; }}\n{1}{2}{{ const float m = y{0}[ph];\n", id, kAfresh, kEach);
    text += quad("q", "0.f", masked(fmt::format("f_exp({} - m)", x), "0.f"), "add2");
    result = "m + logf(q)";
  }
  return fmt::format("float y{0}[PH];\n{1}{{ {2}y{0}[ph] = {3}; }}\n", id, kEach, text, result) +
         (form_.recomputes ? kAfresh : "");
}

}  // namespace upweave::cuda
