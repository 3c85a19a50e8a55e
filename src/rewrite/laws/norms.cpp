#include "graph/ops/norms.h"

#include <algorithm>

#include "rewrite/laws/law.h"

namespace upweave {
namespace {

// Whether a value that broadcasts like `operand` has one value in each set that the norm normalises together.
bool constant_over_sets(const Node& norm, const Shape& x, const Shape& operand) {
  using Kind = NormSets::Kind;
  const NormSets sets = norm_sets(norm, x);
  const size_t rank = x.size();
  switch (sets.kind) {
    case Kind::kChannel:
      return operand[1] == 1;
    case Kind::kLast: {
      for (size_t a = rank - static_cast<size_t>(norm_attrs(norm).count); a < rank; ++a) {
        if (operand[a] != 1) return false;
      }
      return true;
    }
    case Kind::kBatch:
      return operand[0] == 1 && constant_over_space(operand);
    case Kind::kInstance:
      return constant_over_space(operand);
    case Kind::kGroup:
      return constant_over_space(operand) && (operand[1] == 1 || sets.groups == sets.channels);
  }
  return false;
}

}  // namespace

// norm(x + c) = norm(x) if c has one value in each normalised set: mean(x + c) = mean(x) + c.
// A c that is NaN or infinite would have made its sets NaN; they come out as if it were finite. A number is
// checked, a tensor cannot be.
std::optional<Graph> drop_shift(const Graph& graph, Id id, Firing& firing) {
  const Node& norm = graph[id];
  if (!is_norm(norm)) return std::nullopt;
  const Node& shift = graph[norm.in[0]];
  if (!one_of(shift, {Op::kAdd, Op::kSub}) || shape_of(graph, shift, 0) != norm.shape) return std::nullopt;
  if (is_number(shift) && !std::isfinite(shift.attrs.real("value"))) return std::nullopt;
  if (!constant_over_sets(norm, norm.shape, operand_shape(graph, shift))) return std::nullopt;
  Edit edit(graph);
  std::vector<Id> in = norm.in;
  in[0] = shift.in[0];
  firing.where = print_stage(graph, norm.in[0]) + " | " + print_stage(graph, id);
  firing.why =
      "the operand has one value in each set that is normalised together, so it leaves with the mean";
  if (!is_number(shift)) firing.why += "; a NaN or infinity in it no longer reaches the result";
  return edit.replace(id, edit.again(id, in));
}

// norm(s x; eps) = sign(s) norm(x; eps / s^2): mean and deviation scale with s, so
// s (x - m) / sqrt(s^2 var + eps) = sign(s) (x - m) / sqrt(var + eps / s^2).
// s is a number: finite, not 0, and eps / s^2 neither overflows nor vanishes. A negative s needs a norm
// without weight, for the sign comes before it. NaN and infinities as before.
std::optional<Graph> drop_scale(const Graph& graph, Id id, Firing& firing) {
  const Node& norm = graph[id];
  if (!is_norm(norm)) return std::nullopt;
  const Node& scale = graph[norm.in[0]];
  if (!one_of(scale, {Op::kMul, Op::kDiv}) || !is_number(scale)) return std::nullopt;
  const double value = scale.attrs.real("value"), s = is(scale, Op::kMul) ? value : 1 / value;
  const double eps = norm_eps(norm), scaled = eps > 0 ? eps / (s * s) : 0;
  // The plain float range: engines keep eps in float32.
  if (!std::isfinite(s) || s == 0 || (eps > 0 && !(scaled > 1e-30 && scaled < 1e30))) return std::nullopt;
  if (s < 0 && (norm.in[1] != kNone || norm.in[2] != kNone)) return std::nullopt;
  Edit edit(graph);
  std::vector<Id> in = norm.in;
  in[0] = scale.in[0];
  Id result = edit.again(id, in);
  edit.node(result).attrs.set("eps", scaled);
  if (s < 0) {
    Attributes minus;
    minus.set("value", -1.0);
    result = edit.add(Op::kMul, {result, kNone}, minus);
  }
  firing.where = print_stage(graph, norm.in[0]) + " | " + print_stage(graph, id);
  firing.why = fmt::format("the scale {} is one value for all sets and not 0; eps becomes {:.4g}", s, scaled);
  return edit.replace(id, result);
}

// layer_norm over channels right behind a convolution: the mean over channels of convT(x; K) + b is
// convT(x; mean K) + mean b, so with K' = K - mean over C_out of K and b' = b - mean b the result is centred
// already and only the scale is left: the mean, its pass and its cancellation vanish.
// Needs one group (each output channel sees every input channel) and no other reader of the convolution.
// An infinity that reaches a voxel makes all its channels NaN, before and after.
std::optional<Graph> center_weights(const Graph& graph, Id id, Firing& firing) {
  const Node& norm = graph[id];
  if (!is(norm, Op::kLayerNorm) || norm.attrs.word("axes") != "channel") return std::nullopt;
  Id conv = norm.in[0], bias = kNone;
  if (!only_user(graph, conv)) return std::nullopt;
  if (is(graph[conv], Op::kAdd) && !is_number(graph[conv]) && graph[graph[conv].in[1]].of_parameters &&
      shape_of(graph, graph[conv], 1).size() == 1 && shape_of(graph, graph[conv], 1)[0] == norm.shape[1]) {
    bias = graph[conv].in[1];
    conv = graph[conv].in[0];
    if (!only_user(graph, conv)) return std::nullopt;
  }
  const Node& node = graph[conv];
  if (!is(node, Op::kConvTranspose) || node.in[2] != kNone || shape_of(graph, node, 1)[1] != norm.shape[1]) {
    return std::nullopt;  // grouped: C_out / groups differs from C_out
  }
  Edit edit(graph);
  Id value = edit.again(conv, {node.in[0], edit.add(Op::kCenter, {node.in[1]}), kNone});
  if (bias != kNone) value = edit.add(Op::kAdd, {value, edit.add(Op::kCenter, {bias})});
  firing.where = print_stage(graph, conv) + " | " + print_stage(graph, id);
  firing.why = "the norm is over all output channels of an ungrouped convolution that nobody else reads";
  return edit.replace(id, edit.add(Op::kRmsNorm, {value, norm.in[1], norm.in[2]}, norm.attrs));
}

// moments(s x + b) = (s mean + b, s^2 var) of x, so that moments that are given out and the norm that drops
// the same shift or scale share one value and one sweep. s is a number: finite, not 0, its square neither
// overflows nor vanishes in float32. b is a finite number, or parameters that have one value in each set:
// where it is NaN or infinite, the variance comes out as if it were not. Only outputs read the moments, as
// they are or adjusted: a norm subtracts the mean from x + b again, and would meet the rounding of both sums.
std::optional<Graph> adjust_moments(const Graph& graph, Id id, Firing& firing) {
  const Node& moments = graph[id];
  if (!is(moments, Op::kMoments)) return std::nullopt;
  const Node& f = graph[moments.in[0]];
  if (!one_of(f, {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv}) || shape_of(graph, f, 0) != f.shape)
    return std::nullopt;
  const auto outwards = [&](Id reader) { return reader == kNone || is(graph[reader], Op::kAdjustMoments); };
  if (!std::ranges::all_of(users(graph)[id], outwards)) return std::nullopt;
  Edit edit(graph);
  Attributes attrs;
  Id shift = kNone;
  if (one_of(f, {Op::kMul, Op::kDiv})) {
    if (!is_number(f)) return std::nullopt;
    const double value = f.attrs.real("value"), s = is(f, Op::kMul) ? value : 1 / value;
    if (!(s * s > 1e-30 && s * s < 1e30)) return std::nullopt;
    attrs.set("scale", s);
    firing.why = fmt::format("a factor of {} scales mean and deviation alike", s);
  } else if (is_number(f)) {
    const double b = f.attrs.real("value");
    if (!std::isfinite(b)) return std::nullopt;
    attrs.set("shift", is(f, Op::kAdd) ? b : -b);
    firing.why = "a number moves the mean alone";
  } else {
    const Shape b = operand_shape(graph, f);
    if (!is(f, Op::kAdd) || !weight_side(graph)[f.in[1]] || b[0] != 1 ||
        !constant_over_sets(moments, f.shape, b))
      return std::nullopt;
    shift = f.in[1];
    firing.why =
        "the operand has one value in each set, which moves the mean alone; a NaN or infinity in it no "
        "longer "
        "reaches the variance";
  }
  firing.where = print_stage(graph, moments.in[0]) + " | " + print_stage(graph, id);
  const Id inner = edit.again(id, {f.in[0]});
  return edit.replace(id, edit.add(Op::kAdjustMoments, {inner, shift}, attrs));
}

// batch, group and instance norm: norm(x) = normalize(x, moments(x)). The moments end a pass; the rest is an
// affine map that is constant over space, which pools and averages can pass. Exact.
std::optional<Graph> split_norm(const Graph& graph, Id id, Firing& firing) {
  const Node& norm = graph[id];
  if (!one_of(norm, {Op::kBatchNorm, Op::kGroupNorm, Op::kInstanceNorm})) return std::nullopt;
  Attributes attrs;
  attrs.set("axes", std::string(norm_attrs(norm).axes));
  if (norm.attrs.has("groups")) attrs.set("groups", norm.attrs.ints("groups"));
  Edit edit(graph);
  const Id moments = edit.add(Op::kMoments, {norm.in[0]}, attrs);
  if (norm.attrs.has("eps")) attrs.set("eps", norm.attrs.real("eps"));
  firing.where = print_stage(graph, id);
  firing.why = "its statistics need all of space; what follows needs one voxel";
  return edit.replace(id, edit.add(Op::kNormalize, {norm.in[0], moments, norm.in[1], norm.in[2]}, attrs));
}

}  // namespace upweave
