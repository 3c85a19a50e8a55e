#include "plan/places.h"

#include <algorithm>

#include "base/checked.h"
#include "base/dtype.h"
#include "graph/ops/conv.h"
#include "plan/layout.h"
#include "plan/lifetimes.h"

namespace upweave {
namespace {

using Kind = Place::Kind;

constexpr int64_t kAlign = 64, kPage = 4096;

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

int64_t aligned(int64_t bytes, int64_t to) { return checked_add(bytes, to - 1, "the workspace") / to * to; }

int64_t voxels(const Shape& shape) {
  int64_t n = 1;
  for (size_t a = 2; a < shape.size(); ++a) n *= shape[a];
  return n;
}

// Whether the pass's convolution is computed from the value, which another pass left or this one makes.
bool convolves(const FusedPlan& plan, const Pass& pass, Id id) {
  if (pass.conv == kNone || pass.conv == id) return false;
  const auto in_pass = [&](Id at) { return at == id || contains(pass.nodes, at); };
  return contains(with_operands(plan.graph, pass.conv, in_pass), id);
}

// The output's own memory serves one stored value of the same shape, if the pass that writes the output reads
// it voxel by voxel. A 16-bit output would round it: it holds the upper halves of the float32 value, which
// saves half of the memory and no digits. Convolutions, and passes that have one, do not read halves.
bool lies_in_output(const FusedPlan& plan, Id id, Dtype dtype, bool halves) {
  if (plan.part.sliced() || !contains(plan.passes.back().reads, id) || !output_can_hold(plan, id))
    return false;
  if (dtype == Dtype::kF32) return true;
  return halves && voxels(plan.graph[id].shape) > 1 &&
         std::ranges::none_of(plan.passes, [&](const Pass& pass) {
           return (contains(pass.reads, id) && pass.conv != kNone) || convolves(plan, pass, id);
         });
}

}  // namespace

bool counts_batch(const Graph& graph, Id id) {
  return is_statistics(graph[id]) && graph[id].op->reach(graph[id]) == Reach::kBatch;
}

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

void choose_places(FusedPlan& plan, const Target& target, const Options& options) {
  const Graph& graph = plan.graph;
  plan.places.assign(graph.nodes.size(), {});
  plan.workspace = {};
  for (Id id = 0; id < graph.size(); ++id) {
    Place& place = plan.places[id];
    const bool statistics = is_statistics(graph[id]);
    place.dtype = statistics ? Dtype::kF64 : Dtype::kF32;
    // The passes of a slice go through the same tiles.
    if (plan.part.sliced() && voxels(graph[id].shape) > 1) place.layout = Place::Layout::kPrepared;
    if (is_input(graph, id)) place = {.kind = Kind::kInput, .dtype = options.dtype};
    if (plan.weights[id])
      place = {.kind = Kind::kWeights, .dtype = is_param(graph, id) ? options.dtype : Dtype::kF64};
  }
  for (const Output& output : graph.extra_outputs)
    plan.places[output.value] = {.kind = Kind::kExtraOutput,
                                 .dtype = output_dtype(graph, output.value, options.dtype)};
  plan.places[graph.output] = {.kind = Kind::kOutput, .dtype = options.dtype};
  bool output_taken = false;
  for (const Pass& pass : plan.passes) {
    for (const std::vector<Id>* left : {&pass.reductions, &pass.writes}) {
      for (const Id id : *left) {
        Place& place = plan.places[id];
        if (place.kind != Kind::kNowhere) continue;
        if (counts_batch(graph, id)) {
          place.kind = Kind::kKept;
          place.bytes = checked_mul(count(plan.part.graph[id].shape), size_of(place.dtype), "the workspace");
          place.offset = plan.workspace.kept;
          plan.workspace.kept = checked_add(place.offset, aligned(place.bytes, kAlign), "the workspace");
        } else if (!output_taken && left == &pass.writes &&
                   lies_in_output(plan, id, options.dtype, target.halves)) {
          place.kind = Kind::kOutput;
          place.halves = options.dtype != Dtype::kF32;
          output_taken = true;
        } else {
          place.kind = Kind::kWorkspace;
        }
      }
    }
  }
  plan.workspace.kept = aligned(plan.workspace.kept, kPage);
  choose_layouts(plan, target);
}

void assign_places(FusedPlan& plan, const Footprint& footprint) {
  const Offsets offsets = assign_offsets(footprint.values);
  for (size_t i = 0; i < offsets.at.size(); ++i) {
    const Lifetime& value = footprint.values[i];
    Place& place = plan.places[value.value];
    if (place.kind == Kind::kNowhere) place.kind = Kind::kWorkspace;
    place.offset = offsets.at[i];
    place.bytes = value.bytes;
    place.first = value.first;
    place.last = value.last;
  }
  plan.workspace.values = offsets.at.empty() ? 0 : aligned(offsets.bytes, kPage);
  plan.workspace.least = offsets.least;
  plan.workspace.scratch = footprint.scratch;
}

Footprint footprint_of_passes(const FusedPlan& plan) {
  Footprint footprint;
  std::vector<size_t> lifetime(plan.graph.nodes.size(), SIZE_MAX);
  for (size_t p = 0; p < plan.passes.size(); ++p) {
    const int step = static_cast<int>(p);
    for (const Id id : plan.passes[p].reads) {
      if (lifetime[id] != SIZE_MAX) footprint.values[lifetime[id]].last = step;
    }
    for (const std::vector<Id>* left : {&plan.passes[p].reductions, &plan.passes[p].writes}) {
      for (const Id id : *left) {
        const Place& place = plan.places[id];
        if (place.kind != Kind::kWorkspace && !place.halves) continue;
        const int64_t element = place.halves ? 2 : size_of(place.dtype);
        lifetime[id] = footprint.values.size();
        footprint.values.push_back(
            {id, checked_mul(count(plan.part.graph[id].shape), element, "the workspace"), step, step});
      }
    }
  }
  return footprint;
}

}  // namespace upweave
