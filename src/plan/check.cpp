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
    computed_by_ = left_by_;
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
    const Workspace& workspace = plan_.workspace;
    std::vector<Id> placed;
    int in_output = 0;
    for (Id id = 0; id < graph_.size(); ++id) {
      const Place& place = plan_.places[id];
      if (place.kind == Kind::kNowhere && left_by_[id] != kNone)
        throw broken("{} is left nowhere", name_of(id));
      if (place.kind == Kind::kOutput && id != graph_.output &&
          (!output_can_hold(plan_, id) || plan_.part.sliced() || ++in_output > 1))
        throw broken("{} is in the output's memory, which is written before it is read", name_of(id));
      if (place.halves && place.kind != Kind::kOutput) throw broken("{} has halves nowhere", name_of(id));
      if (place.kind == Kind::kKept) check_within(id, workspace.kept);
      if (place.kind == Kind::kWorkspace || place.halves) {
        check_within(id, workspace.values);
        if (place.first < 0 || place.last < place.first)
          throw broken("{} lives from step {} to step {}", name_of(id), place.first, place.last);
        placed.push_back(id);
      }
    }
    check_apart(placed);
    if (workspace.least > workspace.values)
      throw broken("values take {} bytes, less than the {} that are alive at once", workspace.values,
                   workspace.least);
  }

  void check_part() const {
    const Part& part = plan_.part;
    if (part.graph.nodes.size() != graph_.nodes.size())
      throw broken("{} nodes have {} in a part", graph_.nodes.size(), part.graph.nodes.size());
    if (part.samples < 1 ? part.all != part.samples : part.samples > part.all)
      throw broken("{} of {} samples go together", part.samples, part.all);
    if (part.slots < 1 || part.slots > std::max<int64_t>(1, part.micro_batches()))
      throw broken("{} micro-batches have {} slots", part.micro_batches(), part.slots);
    const int64_t samples = part.sliced() ? part.all : 1, blocks = std::max<int64_t>(1, part.blocks);
    const int64_t whole = count(graph_[graph_.output].shape), one = count(part.graph[graph_.output].shape);
    if (is_statistics(graph_[graph_.output])) return;
    if (part.sliced() || part.whole() ? one * samples * blocks != whole
                                      : one / part.samples * part.all != whole)
      throw broken("parts of {} elements do not make the output's {}", one, whole);
  }

 private:
  std::string name_of(Id id) const { return fmt::format("node {} ({})", id, graph_[id].op->name); }

  void check_within(Id id, int64_t all) const {
    const Place& place = plan_.places[id];
    if (place.offset < 0 || place.offset % 64 != 0 || place.bytes < 0 || place.offset + place.bytes > all)
      throw broken("{} is at {} of a workspace of {} bytes", name_of(id), place.offset, all);
  }

  // Who takes the place of another begins where that ends, with the same bytes.
  void check_apart(const std::vector<Id>& placed) const {
    for (const Id a : placed) {
      for (const Id b : placed) {
        const Place &x = plan_.places[a], &y = plan_.places[b];
        if (a == b || x.first > y.first || y.first > x.last) continue;
        const bool in_place = x.last == y.first && x.offset == y.offset && x.bytes == y.bytes;
        if (!in_place && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes)
          throw broken("{} and {} share memory", name_of(a), name_of(b));
      }
    }
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
        left_by_[id] = number_;
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
    }
    computed_by_[id] = number_;
  }

  const FusedPlan& plan_;
  const Graph& graph_;
  int number_ = 0;                          // of the pass, from 1
  std::vector<int> computed_by_, left_by_;  // passes' numbers; inputs are left by 0
};

}  // namespace

void check(const FusedPlan& plan) {
  PlanChecker checker(plan);
  checker.check_passes();
  checker.check_part();
  checker.check_places();
}

}  // namespace upweave
