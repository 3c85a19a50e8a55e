#include "rewrite/laws/law.h"

namespace upweave {

// softmax(x) = exp(x - c) / sum exp(x - c) for any c. The maximum is the usual choice and costs a pass; if x
// lies in [lo, hi], c = hi does as well: no exponent exceeds 0 and none falls below lo - hi. That difference
// must be at most 8, so that x - hi is not rounded more coarsely than x - max would be by more than a few
// units. NaN stays NaN in both: a clamp passes it on.
std::optional<Graph> bounded_softmax(const Graph& graph, Id id, Firing& firing) {
  const Node& softmax = graph[id];
  if (!is(softmax, Op::kSoftmax) || softmax.attrs.word("axes") != "space") return std::nullopt;
  const Node& x = graph[softmax.in[0]];
  if (!x.op->range) return std::nullopt;
  const std::optional<Range> range = x.op->range(x);
  if (!range || !(range->hi - range->lo <= 8) || !std::isfinite(range->hi)) return std::nullopt;
  Edit edit(graph);
  Attributes top;
  top.set("value", range->hi);
  const Id shifted = edit.add(Op::kSub, {softmax.in[0], kNone}, top);
  const Id e = edit.add(Op::kExp, {shifted});
  const Id sum = edit.add(Op::kSum, {e}, softmax.attrs);
  firing.where = print_stage(graph, softmax.in[0]) + " | " + print_stage(graph, id);
  firing.why =
      fmt::format("its input lies in [{}, {}], so {} serves as the shift and the pass for the maximum goes",
                  range->lo, range->hi, range->hi);
  return edit.replace(id, edit.add(Op::kDiv, {e, sum}));
}

// softmax over space without a bound: maximum and sum are found in one sweep (a larger maximum rescales the
// sum so far), the division needs one voxel. Exact.
std::optional<Graph> split_softmax(const Graph& graph, Id id, Firing& firing) {
  const Node& softmax = graph[id];
  if (!is(softmax, Op::kSoftmax) || softmax.attrs.word("axes") != "space") return std::nullopt;
  Edit edit(graph);
  const Id stats = edit.add(Op::kSoftmaxStats, {softmax.in[0]}, softmax.attrs);
  firing.where = print_stage(graph, id);
  firing.why = "its maximum and sum need all of space; what follows needs one voxel";
  return edit.replace(id, edit.add(Op::kSoftmaxApply, {softmax.in[0], stats}, softmax.attrs));
}

}  // namespace upweave
