#include "plan/check.h"

#include <algorithm>

#include "base/check.h"
#include "graph/operation.h"

namespace upweave {
namespace {

using Kind = Place::Kind;

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

class PlanChecker {
 public:
  explicit PlanChecker(const FusedPlan& plan) : plan_(plan), graph_(plan.graph) {
    if (plan.weights.size() != graph_.nodes.size() || plan.places.size() != graph_.nodes.size())
      throw broken("{} nodes have {} places", graph_.nodes.size(), plan.places.size());
    left_by_.assign(graph_.nodes.size(), kNone);
    last_read_ = computed_by_ = left_by_;
    for (Id id = 0; is_input(graph_, id); ++id) left_by_[id] = 0;
  }

  void check_passes() {
    for (number_ = 1; number_ <= static_cast<int>(plan_.passes.size()); ++number_)
      check_pass(plan_.passes[static_cast<size_t>(number_ - 1)]);
    const auto check_there = [&](Id id) {
      if (left_by_[id] == kNone && !plan_.weights[id])
        throw broken("{} is an output that no pass writes", name_of(id));
    };
    check_there(graph_.output);
    for (const Output& output : graph_.extra_outputs) check_there(output.value);
  }

  void check_places() {
    struct Block {
      Id id;
      int64_t begin, end;
    };
    std::vector<Block> blocks;
    for (Id id = 0; id < graph_.size(); ++id) {
      const Place& place = plan_.places[id];
      if (place.kind == Kind::kNowhere && left_by_[id] != kNone)
        throw broken("{} is left nowhere", name_of(id));
      if (place.kind == Kind::kOutput && id != graph_.output && !output_can_hold(plan_, id))
        throw broken("{} is in the output's memory, which is written before it is read", name_of(id));
      if (place.kind != Kind::kWorkspace) continue;
      const int64_t bytes = count(graph_[id].shape) * (finished(id) ? 8 : 4);
      if (place.offset < 0 || place.offset % 64 != 0 || place.offset + bytes > plan_.workspace_bytes)
        throw broken("{} is at {} of a workspace of {} bytes", name_of(id), place.offset,
                     plan_.workspace_bytes);
      blocks.push_back({id, place.offset, place.offset + bytes});
    }
    for (const Block& a : blocks) {
      for (const Block& b : blocks) {
        const bool live = left_by_[a.id] <= last_read_[b.id] && left_by_[b.id] <= last_read_[a.id];
        if (a.id < b.id && live && a.begin < b.end && b.begin < a.end)
          throw broken("{} and {} share memory", name_of(a.id), name_of(b.id));
      }
    }
  }

 private:
  std::string name_of(Id id) const { return fmt::format("node {} ({})", id, graph_[id].op->name); }

  bool finished(Id id) const {
    return left_by_[id] > 0 && contains(plan_.passes[static_cast<size_t>(left_by_[id] - 1)].reductions, id);
  }

  void check_pass(const Pass& pass) {
    if (pass.nodes.empty()) throw broken("pass {} computes nothing", number_);
    if (pass.conv != kNone && !contains(pass.nodes, pass.conv))
      throw broken("pass {} has a convolution that is not in it, {}", number_, name_of(pass.conv));
    if (pass.conv != kNone && pass.slab) throw broken("pass {} convolves whole samples", number_);
    std::vector<Id> reads;
    for (const Id id : pass.nodes) check_node(pass, id, reads);
    std::vector<Id> listed = pass.reads;
    for (std::vector<Id>* ids : {&reads, &listed}) std::ranges::sort(*ids);
    reads.erase(std::ranges::unique(reads).begin(), reads.end());
    if (reads != listed)
      throw broken("pass {} reads nodes {} and lists {}", number_, fmt::format("{}", fmt::join(reads, " ")),
                   fmt::format("{}", fmt::join(listed, " ")));
    for (const std::vector<Id>* ids : {&pass.reductions, &pass.writes}) {
      for (const Id id : *ids) {
        if (computed_by_[id] != number_)
          throw broken("pass {} leaves {} without computing it", number_, name_of(id));
        if (left_by_[id] != kNone)
          throw broken("pass {} leaves {}, which is there already", number_, name_of(id));
        left_by_[id] = last_read_[id] = number_;
      }
    }
  }

  void check_node(const Pass& pass, Id id, std::vector<Id>& reads) {
    if (plan_.weights[id]) throw broken("pass {} computes {}, which is packed", number_, name_of(id));
    if (is(graph_[id], Op::kConvTranspose) && id != pass.conv)
      throw broken("pass {} has a second convolution, {}", number_, name_of(id));
    for (const Id in : graph_[id].in) {
      if (in == kNone || plan_.weights[in]) continue;
      // A reduction that ends with the pass is known behind it.
      if (computed_by_[in] == number_ && !contains(pass.reductions, in)) continue;
      if (left_by_[in] == kNone)
        throw broken("pass {}: {} reads {}, which no earlier pass left", number_, name_of(id), name_of(in));
      reads.push_back(in);
      last_read_[in] = number_;
    }
    computed_by_[id] = number_;
  }

  const FusedPlan& plan_;
  const Graph& graph_;
  int number_ = 0;                                      // of the pass, from 1
  std::vector<int> computed_by_, left_by_, last_read_;  // passes' numbers; inputs are left by 0
};

}  // namespace

void check(const FusedPlan& plan) {
  PlanChecker checker(plan);
  checker.check_passes();
  checker.check_places();
}

}  // namespace upweave
