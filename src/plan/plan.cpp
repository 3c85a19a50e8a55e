#include "plan/plan.h"

#include <algorithm>

#include "base/checked.h"
#include "base/dtype.h"
#include "graph/operation.h"
#include "graph/ops/conv.h"
#include "graph/ops/norms.h"
#include "plan/cost.h"

namespace upweave {
namespace {

// Norms over several trailing axes see more than a row: they wait for a pass whose tile is a whole sample.
bool needs_slab(const Node& node) {
  if (is(node, Op::kMeanConv)) return true;
  if (!is(node, Op::kLayerNorm) && !is(node, Op::kRmsNorm)) return false;
  const NormAttrs norm = norm_attrs(node);
  return norm.axes == "last" && norm.count > 1;
}

// Whether the node's result is known only when the whole pass is over.
bool ends_pass(const Node& node, bool slab) {
  const Reach reach = node.op->reach(node);
  if (reach == Reach::kBatch) return true;
  if (slab || is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm)) return false;
  return reach == Reach::kSpace || reach == Reach::kRow;
}

class Planner {
 public:
  Planner(const Graph& graph, const Target& target, Dtype dtype)
      : graph_(graph), target_(target), dtype_(dtype), weights_(weight_side(graph)), readers_(users(graph)) {
    memory_.assign(graph.nodes.size(), false);
    for (Id id = 0; is_input(graph, id); ++id) memory_[id] = true;
    known_ = memory_;
    outputs_ = {graph.output};
    for (const Output& output : graph.extra_outputs) outputs_.push_back(output.value);
  }

  std::vector<Pass> passes() {
    std::vector<Pass> result;
    while (!complete()) {
      Pass pass = target_.fuse ? fused_pass() : single_pass();
      if (pass.nodes.empty()) {  // what was to be computed again is wanted where it cannot be
        store_known();
        keep_wanted(result);
        continue;
      }
      for (const Id id : pass.nodes) known_[id] = true;
      for (const Id id : pass.reductions) memory_[id] = true;
      for (const Id id : outputs_) {
        if (known_[id] && !memory_[id]) pass.writes.push_back(id);
        memory_[id] = memory_[id] || known_[id];
      }
      if (complete()) {
        pass.why = "the output is complete";
      } else {
        end(pass);
      }
      result.push_back(std::move(pass));
      keep_wanted(result);
    }
    for (Pass& pass : result) finish(pass);
    return result;
  }

 private:
  bool is_output(Id id) const { return std::ranges::find(outputs_, id) != outputs_.end(); }
  bool complete() const {
    return std::ranges::all_of(outputs_, [&](Id id) { return known_[id]; });
  }

  // A value that a later pass wants is written by the pass that made it first.
  void keep_wanted(std::vector<Pass>& passes) {
    for (const Id id : wanted_) {
      for (Pass& earlier : passes) {
        if (std::ranges::find(earlier.nodes, id) == earlier.nodes.end()) continue;
        earlier.writes.push_back(id);
        memory_[id] = true;
        break;
      }
    }
    wanted_.clear();
  }

  // A second convolution, or a reduction that sees a whole sample, cannot share a sweep with the convolution
  // that its operand would be computed again by: the operand is stored, whatever that costs.
  void store_known() {
    for (Id id = 1; id < graph_.size(); ++id) {
      if (known_[id] && !from_memory(id) && feeds_later(id, {})) wanted_.push_back(id);
    }
    if (wanted_.empty()) throw fail(Status::kInternal, "the plan cannot go on");
  }

  bool from_memory(Id id) const { return weights_[id] || memory_[id]; }

  // Nodes that are not known yet, and those from which one is reached without meeting memory: a convolution
  // that only led to values that are stored by now must not take another's place in a sweep.
  std::vector<bool> leads_on() const {
    std::vector<bool> result(graph_.nodes.size(), false);
    for (Id id = graph_.size(); id-- > 1;) {
      result[id] = !known_[id] || std::ranges::any_of(readers_[id], [&](Id reader) {
        return reader != kNone && result[reader] && !from_memory(reader);
      });
    }
    return result;
  }

  // All that one sweep can compute from what is in memory: nodes whose operands are there or come first in
  // the sweep.
  std::vector<Id> reachable(bool slab) const {
    std::vector<bool> here(graph_.nodes.size(), false), convolved = here;
    const std::vector<bool> open = leads_on();
    std::vector<Id> result;
    bool has_conv = false;
    for (Id id = 1; id < graph_.size(); ++id) {
      const Node& node = graph_[id];
      if (node.in.empty() || from_memory(id) || !open[id]) continue;
      const bool conv = is(node, Op::kConvTranspose);
      bool possible = !(slab ? conv : needs_slab(node));
      for (const Id in : node.in) {
        if (in == kNone || from_memory(in)) continue;
        possible = possible && here[in] && !ends_pass(graph_[in], slab);
        convolved[id] = convolved[id] || convolved[in];
      }
      // One convolution a sweep: a second would need neighbours that other tiles hold.
      if (!possible || (conv && (convolved[id] || has_conv))) continue;
      has_conv = has_conv || conv;
      convolved[id] = convolved[id] || conv;
      here[id] = true;
      result.push_back(id);
    }
    return result;
  }

  // Of `nodes`, those that lead to something new: a reduction or the output, or values not known before.
  std::vector<Id> needed(const std::vector<Id>& nodes, bool slab) const {
    std::vector<bool> keep(graph_.nodes.size(), false);
    std::vector<Id> result;
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      const bool fresh =
          !known_[*it] && (is_output(*it) || ends_pass(graph_[*it], slab) || feeds_later(*it, nodes));
      if (!fresh && !keep[*it]) continue;
      result.push_back(*it);
      for (const Id in : graph_[*it].in) {
        if (in != kNone && !from_memory(in)) keep[in] = true;
      }
    }
    std::ranges::reverse(result);
    return result;
  }

  bool feeds_later(Id id, const std::vector<Id>& nodes) const {
    return std::ranges::any_of(readers_[id], [&](Id reader) {
      return reader != kNone && !known_[reader] && std::ranges::find(nodes, reader) == nodes.end();
    });
  }

  Pass fused_pass() {
    Pass pass;
    const std::vector<Id> tiled = reachable(false);
    pass.nodes = needed(tiled, false);
    const auto conv =
        std::ranges::find_if(pass.nodes, [&](Id id) { return is(graph_[id], Op::kConvTranspose); });
    if (conv != pass.nodes.end()) pass.conv = *conv;
    // Without a convolution, or where the convolution would finish nothing while a sweep over whole samples
    // can make what it waits for, that sweep is next.
    const bool finishes =
        std::ranges::any_of(pass.nodes, [&](Id id) { return is_output(id) || ends_pass(graph_[id], false); });
    if (pass.conv == kNone || !finishes) {
      std::vector<Id> whole = needed(reachable(true), true);
      const bool news = std::ranges::any_of(
          whole, [&](Id id) { return !known_[id] && std::ranges::find(tiled, id) == tiled.end(); });
      if (pass.conv == kNone || news) {
        pass.nodes = std::move(whole);
        pass.conv = kNone;
        pass.slab = true;
      }
    }
    for (const Id id : pass.nodes) {
      if (ends_pass(graph_[id], pass.slab)) pass.reductions.push_back(id);
    }
    return pass;
  }

  // One operation, its operands read from memory and its result written there.
  Pass single_pass() {
    Pass pass;
    for (Id id = 1; id < graph_.size(); ++id) {
      const Node& node = graph_[id];
      if (node.in.empty() || from_memory(id)) continue;
      pass.nodes = {id};
      if (is(node, Op::kConvTranspose)) pass.conv = id;
      pass.slab = pass.conv == kNone;
      wanted_ = is_output(id) ? std::vector<Id>{} : std::vector<Id>{id};
      break;
    }
    return pass;
  }

  // The pass is over but the pipeline is not: say why, and choose between storing what later passes read and
  // computing it again.
  void end(Pass& pass) {
    if (!target_.fuse) {
      pass.why = "one operation a pass";
      return;
    }
    std::vector<Id> frontier;
    for (const Id id : pass.nodes) {
      if (!from_memory(id) && feeds_later(id, {})) frontier.push_back(id);
    }
    double bytes = 0, again = 0;
    for (const Id id : frontier)
      bytes += 8.0 * static_cast<double>(count(graph_[id].shape));  // written, then read
    std::vector<bool> counted(graph_.nodes.size(), false);
    auto recompute = [&](Id id) {  // what is in memory is read, and what it was made of is not
      if (counted[id] || weights_[id]) return false;
      counted[id] = true;
      again += memory_[id] ? static_cast<double>(count(graph_[id].shape)) * 4 * target_.flops_per_byte
                           : flops(graph_, id);
      return !memory_[id];
    };
    for (const Id id : frontier) with_operands(graph_, id, recompute);
    std::vector<std::string> names;
    for (const Id id : pass.reductions) names.emplace_back(graph_[id].op->name);
    pass.why = names.empty() ? "what follows needs more than a tile"
                             : fmt::format("{} needs all of {}", fmt::join(names, ", "),
                                           pass.slab ? "the batch" : "space");
    if (frontier.empty()) return;
    // A pass that finishes no reduction is there for the values it leaves behind.
    const bool store = pass.reductions.empty() || bytes * target_.flops_per_byte <= again;
    if (store) wanted_ = frontier;
    pass.why +=
        fmt::format("; {:.1f} MB are {}: moving them costs as much as {:.1f} GFLOP, computing them {:.1f}",
                    bytes / 2e6, store ? "kept for the next pass" : "computed again",
                    bytes * target_.flops_per_byte / 1e9, again / 1e9);
  }

  void finish(Pass& pass) const {
    for (const Id id : pass.nodes) {
      pass.flops += flops(graph_, id);
      for (const Id in : graph_[id].in) {
        if (in == kNone || weights_[in] || std::ranges::find(pass.nodes, in) != pass.nodes.end()) continue;
        if (memory_[in] && std::ranges::find(pass.reads, in) == pass.reads.end()) pass.reads.push_back(in);
      }
    }
    auto bytes = [&](Id id) {
      const int64_t element = is_input(graph_, id) ? size_of(dtype_)
                              : is_output(id)      ? size_of(output_dtype(graph_, id, dtype_))
                                                   : 4;
      return static_cast<double>(count(graph_[id].shape)) * static_cast<double>(element);
    };
    for (const Id id : pass.reads) pass.bytes += bytes(id);
    for (const Id id : pass.writes) pass.bytes += bytes(id);
    for (const Id id : pass.nodes) {  // full tensors among the parameters
      for (const Id in : graph_[id].in) {
        if (in != kNone && weights_[in])
          pass.bytes += static_cast<double>(count(graph_[in].shape)) * size_of(dtype_);
      }
    }
  }

  const Graph& graph_;
  const Target target_;
  const Dtype dtype_;
  const std::vector<bool> weights_;
  const std::vector<std::vector<Id>> readers_;
  std::vector<Id> outputs_;   // the graph's, its result first
  std::vector<bool> memory_;  // in memory for the next pass to read
  std::vector<bool> known_;   // computed by some pass
  std::vector<Id> wanted_;    // to be stored by the pass that computes it first
};

// With several outputs, each leaves by a node that nobody reads, so that where it lies and how it is rounded
// is nobody else's matter: values that others read, that are given out twice or are the input, and
// statistics, which engines keep in their own way until they are complete, leave by a copy, x * 1.
void separate_outputs(Graph& graph) {
  if (graph.extra_outputs.empty()) return;
  const auto readers = users(graph);
  const auto separate = [&](Id& output, const std::string& name) {
    if (readers[output].size() == 1 && !is(graph[output], Op::kMoments) &&
        !is(graph[output], Op::kSoftmaxStats))
      return;
    Node copy;
    copy.op = &operation(Op::kMul);
    copy.in = {output, kNone};
    copy.attrs.set("value", 1.0);
    copy.shape = graph[output].shape;
    copy.name = name;
    if (graph[output].name == name) graph[output].name.clear();
    output = graph.add(std::move(copy));
  };
  separate(graph.output, "");
  for (Output& output : graph.extra_outputs) separate(output.value, output.name);
}

// The output's own memory serves one stored value of the same shape, if the pass that writes the output reads
// it voxel by voxel: float32 only, for 16-bit elements would round twice.
std::vector<Place> place_values(FusedPlan& plan, Dtype dtype) {
  const Graph& graph = plan.graph;
  std::vector<Place> places(graph.nodes.size());
  for (Id id = 0; is_input(graph, id); ++id) places[id].kind = Place::Kind::kInput;
  for (Id id = 0; id < graph.size(); ++id) {
    if (plan.weights[id]) places[id].kind = Place::Kind::kWeights;
  }
  places[graph.output].kind = Place::Kind::kOutput;
  for (const Output& output : graph.extra_outputs) places[output.value].kind = Place::Kind::kExtraOutput;
  bool output_aliased = dtype != Dtype::kF32;
  auto reserve = [&](Id id, int64_t element) {
    if (places[id].kind != Place::Kind::kNowhere) return;
    places[id] = {Place::Kind::kWorkspace, plan.workspace_bytes};
    const int64_t bytes = checked_mul(count(graph[id].shape), element, "the workspace");
    plan.workspace_bytes = checked_add(plan.workspace_bytes, (bytes + 63) / 64 * 64, "the workspace");
  };
  for (const Pass& pass : plan.passes) {
    for (const Id id : pass.reductions) reserve(id, 8);
    for (const Id id : pass.writes) {
      if (is_output(graph, id)) continue;
      const Pass& last = plan.passes.back();
      if (!output_aliased && output_can_hold(plan, id) &&
          std::ranges::find(last.reads, id) != last.reads.end()) {
        places[id].kind = Place::Kind::kOutput;
        output_aliased = true;
      } else {
        reserve(id, 4);
      }
    }
  }
  return places;
}

}  // namespace

bool output_can_hold(const FusedPlan& plan, Id id) {
  const Graph& graph = plan.graph;
  const Pass& last = plan.passes.back();
  if (!last.slab || graph[id].shape != graph[graph.output].shape) return false;
  // Another output may be computed when this one has been written.
  std::vector<bool> made_of(graph.nodes.size(), false);
  made_of[id] = true;
  for (const Id at : last.nodes) {
    for (const Id in : graph[at].in) made_of[at] = made_of[at] || (in != kNone && made_of[in]);
    // These read elements at other places than they write.
    if (made_of[at] && (is(graph[at], Family::kMove) || is_plain_conv(graph[at]))) return false;
  }
  return made_of[graph.output] && std::ranges::none_of(graph.extra_outputs, [&](const Output& output) {
           return made_of[output.value];
         });
}

Dtype output_dtype(const Graph& graph, Id output, Dtype dtype) {
  return is_statistics(graph[output]) && dtype != Dtype::kF64 ? Dtype::kF32 : dtype;
}

FusedPlan make_plan(Graph source, Rewritten rewritten, const Target& target, Dtype dtype) {
  FusedPlan plan;
  plan.source = std::move(source);
  plan.graph = std::move(rewritten.graph);
  plan.firings = std::move(rewritten.firings);
  separate_outputs(plan.graph);
  plan.weights = weight_side(plan.graph);
  plan.passes = Planner(plan.graph, target, dtype).passes();
  plan.places = place_values(plan, dtype);
  plan.cost = plan_cost(plan, dtype);
  return plan;
}

}  // namespace upweave
