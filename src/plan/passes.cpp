#include "plan/passes.h"

#include <algorithm>

#include "base/dtype.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"
#include "plan/sink.h"

namespace upweave {
namespace {

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
    if (target_.fuse && target_.channel_lanes > 0) sink_cats(graph_, result, memory_);
    for (Pass& pass : result) count_pass(pass, graph_, weights_, dtype_);
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

}  // namespace

bool ends_pass(const Node& node, bool slab) {
  const Reach reach = node.op->reach(node);
  if (reach == Reach::kBatch) return true;
  if (slab || is(node, Op::kLayerNorm) || is(node, Op::kRmsNorm)) return false;
  return reach == Reach::kSpace || reach == Reach::kRow;
}

bool needs_slab(const Node& node) {
  if (is(node, Op::kMeanConv)) return true;
  if (!is(node, Op::kLayerNorm) && !is(node, Op::kRmsNorm)) return false;
  const NormAttrs norm = norm_attrs(node);
  return norm.axes == "last" && norm.count > 1;
}

void count_pass(Pass& pass, const Graph& graph, const std::vector<bool>& weights, Dtype dtype) {
  pass.flops = pass.bytes = 0;
  pass.reads.clear();
  std::vector<bool> here(graph.nodes.size(), false), read = here;
  for (const Id id : pass.nodes) here[id] = true;
  const auto bytes = [&](Id id) {
    const int64_t element = is_input(graph, id) || weights[id] ? size_of(dtype)
                            : is_output(graph, id)             ? size_of(output_dtype(graph, id, dtype))
                                                               : 4;
    return static_cast<double>(count(graph[id].shape)) * static_cast<double>(element);
  };
  for (const Id id : pass.nodes) {
    pass.flops += flops(graph, id);
    for (const Id in : graph[id].in) {
      if (in == kNone || here[in]) continue;
      if (weights[in]) {  // full tensors among the parameters
        pass.bytes += bytes(in);
      } else if (!read[in]) {
        read[in] = true;
        pass.reads.push_back(in);
        pass.bytes += bytes(in);
      }
    }
  }
  for (const Id id : pass.writes) pass.bytes += bytes(id);
}

std::vector<Pass> make_passes(const Graph& graph, const Target& target, Dtype dtype) {
  return Planner(graph, target, dtype).passes();
}

}  // namespace upweave
