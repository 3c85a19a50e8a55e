#include "plan/layout.h"

#include <algorithm>

#include "graph/operation.h"

namespace upweave {
namespace {

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

// From memory, on the way in or behind the convolution; or by the convolution itself, where an engine takes
// the pass apart.
bool read_by_convolution(const FusedPlan& plan, Id id) {
  return std::ranges::any_of(plan.passes, [&](const Pass& pass) {
    return pass.conv != kNone && (contains(pass.reads, id) || plan.graph[pass.conv].in[0] == id);
  });
}

}  // namespace

void choose_layouts(FusedPlan& plan, const Target& target) {
  const int64_t multiple = target.channel_lanes;
  if (plan.part.sliced()) return;  // its passes go through the same tiles
  for (Id id = 0; id < plan.graph.size() && multiple > 0; ++id) {
    Place& place = plan.places[id];
    const Shape& shape = plan.graph[id].shape;
    const bool between = place.kind == Place::Kind::kWorkspace || place.kind == Place::Kind::kNowhere;
    if (!between || is_statistics(plan.graph[id]) || shape.size() < 3) continue;
    const int64_t rows = (shape[1] + multiple - 1) / multiple * multiple;
    const bool points = std::all_of(shape.begin() + 2, shape.end(), [](int64_t e) { return e == 1; });
    if (3 * rows <= 4 * shape[1] && !points && read_by_convolution(plan, id))
      place.layout = Place::Layout::kChannelsLast;
  }
}

}  // namespace upweave
