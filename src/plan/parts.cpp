#include "plan/parts.h"

#include <algorithm>

#include "base/dtype.h"
#include "graph/operation.h"
#include "plan/cut.h"
#include "plan/passes.h"
#include "plan/places.h"

namespace upweave {
namespace {

constexpr int64_t kSamplesPerThread = 2;  // of the largest micro-batch
constexpr int64_t kMostBlocks = 256;      // narrower ones have too little to do
constexpr int64_t kLeastShare = 20;       // so much of the cache's bytes gives all threads something to do

class PartChooser {
 public:
  PartChooser(const FusedPlan& plan, const Target& target, const Options& options)
      : whole_(plan), target_(target), options_(options), limits_(target.limits(options)) {}

  FusedPlan choose() {
    if (auto slices = in_slices()) return std::move(*slices);
    FusedPlan plan = whole_;
    const Footprint footprint = place(plan);
    if (fits(plan) || !footprint.cuts_samples) return plan;
    // Micro-batches that give each thread some tiles, smaller ones where those still take too much.
    const int64_t most = std::min(plan.part.all - 1, kSamplesPerThread * limits_.threads);
    for (int64_t samples = most; samples > 0; samples /= 2) {
      auto batch = in_micro_batches(samples);
      if (!batch) break;
      plan = std::move(*batch);
      if (fits(plan)) break;
    }
    return plan;
  }

 private:
  // Places of the plan with the part that it has.
  Footprint place(FusedPlan& plan) const {
    if (limits_.value > 0 && target_.fuse) compute_large_again(plan, limits_.value, options_.dtype);
    choose_places(plan, target_, options_);
    Footprint footprint = target_.measure(plan, options_);
    assign_places(plan, footprint);
    plan.workspace.limit = limits_.workspace;
    return footprint;
  }

  bool fits(const FusedPlan& plan) const {
    return limits_.workspace == 0 || plan.workspace.total(plan.part) <= limits_.workspace;
  }

  // The largest slices that stay in the last-level cache, where the output cannot hold what lies between
  // passes. Float32's can, and a trip to memory costs less there than narrower convolutions.
  std::optional<FusedPlan> in_slices() const {
    const Shape& out = whole_.graph[whole_.graph.output].shape;
    if (limits_.resident == 0 || options_.dtype == Dtype::kF32 || count(out) * 4 <= limits_.resident)
      return std::nullopt;
    for (int64_t blocks = 1; blocks <= std::min(out[1], kMostBlocks); ++blocks) {
      if (out[1] % blocks != 0 || (blocks > 1 && out[1] / blocks % limits_.channel_multiple != 0)) continue;
      std::optional<Part> part = cut_slices(whole_, blocks);
      if (!part) return std::nullopt;
      FusedPlan plan = whole_;
      plan.part = std::move(*part);
      place(plan);
      if (plan.workspace.values < limits_.resident / kLeastShare) return std::nullopt;
      if (plan.workspace.values <= limits_.resident && fits(plan)) return plan;
    }
    return std::nullopt;
  }

  std::optional<FusedPlan> in_micro_batches(int64_t samples) const {
    std::optional<Part> part = cut_samples(whole_, samples);
    if (!part) return std::nullopt;
    FusedPlan plan = whole_;
    plan.part = std::move(*part);
    const Footprint footprint = place(plan);
    if (!footprint.cuts_samples) return std::nullopt;
    const Workspace& workspace = plan.workspace;
    if (workspace.values > 0 && footprint.counts_batch) {
      const int64_t left = limits_.workspace - workspace.kept - workspace.scratch;
      plan.part.slots = std::clamp<int64_t>(left / workspace.values, 1, plan.part.micro_batches());
    }
    return plan;
  }

  const FusedPlan& whole_;
  const Target& target_;
  const Options& options_;
  const Limits limits_;
};

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

// Whether the pass stays one sweep over tiles with a convolution in front: nothing in it waits for what only
// a whole sample, or all of space, gives.
bool takes_convolution(const Graph& graph, const Pass& pass) {
  return pass.conv == kNone && std::ranges::none_of(pass.nodes, [&](Id id) {
           return needs_slab(graph[id]) || std::ranges::any_of(graph[id].in, [&](Id in) {
                    return in != kNone && contains(pass.nodes, in) && ends_pass(graph[in], false);
                  });
         });
}

}  // namespace

void choose_part(FusedPlan& plan, const Target& target, const Options& options) {
  const int64_t samples = batch_size(plan.graph);
  plan.part = {.samples = samples, .all = samples, .graph = plan.graph};
  const bool empty = count(plan.graph[plan.graph.output].shape) == 0;
  if (target.measure && target.limits && !empty) {
    plan = PartChooser(plan, target, options).choose();
  } else {
    choose_places(plan, target, options);
    assign_places(plan, footprint_of_passes(plan));
  }
}

void compute_large_again(FusedPlan& plan, int64_t limit, Dtype dtype) {
  if (dtype == Dtype::kF32) return;
  const Graph& graph = plan.graph;
  std::vector<Pass>& passes = plan.passes;
  for (size_t p = 0; p < passes.size(); ++p) {
    Pass& maker = passes[p];
    if (maker.conv == kNone || std::ranges::any_of(maker.reductions, [&](Id id) {
          return graph[id].op->reach(graph[id]) == Reach::kBatch;
        }))
      continue;
    const std::vector<Id> written = maker.writes;
    for (const Id id : written) {
      const int64_t bytes = count(plan.part.graph[id].shape) * 4;
      const auto reads = [&](const Pass& pass) { return contains(pass.reads, id); };
      if (is_output(graph, id) || bytes <= limit || !std::ranges::all_of(passes, [&](const Pass& pass) {
            return !reads(pass) || takes_convolution(graph, pass);
          }))
        continue;
      std::erase(maker.writes, id);
      for (Pass& pass : passes) {
        if (!reads(pass)) continue;
        const std::vector<Id> again = with_operands(graph, id, [&](Id at) {
          return contains(maker.nodes, at) && !contains(pass.nodes, at) && !contains(maker.reductions, at) &&
                 !contains(maker.writes, at);
        });
        pass.nodes.insert(pass.nodes.begin(), again.begin(), again.end());
        pass.slab = false;
        if (contains(pass.nodes, maker.conv)) pass.conv = maker.conv;
        pass.reductions.clear();
        for (const Id at : pass.nodes) {
          if (!ends_pass(graph[at], false)) continue;
          pass.reductions.push_back(at);
          std::erase(pass.writes, at);
        }
        count_pass(pass, graph, plan.weights, dtype);
      }
      maker.why += fmt::format(
          "; {:.1f} MB are more than is stored of what a 16-bit output cannot hold: "
          "they are computed again",
          static_cast<double>(bytes) * 1e-6);
      count_pass(maker, graph, plan.weights, dtype);
    }
  }
  std::erase_if(passes, [](const Pass& pass) { return pass.writes.empty() && pass.reductions.empty(); });
}

}  // namespace upweave
