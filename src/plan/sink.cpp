#include "plan/sink.h"

#include <algorithm>

#include "graph/operation.h"

namespace upweave {
namespace {

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

bool reads(const Graph& graph, const Pass& pass, Id value) {
  return std::ranges::any_of(pass.nodes, [&](Id id) { return contains(graph[id].in, value); });
}

bool only_convolutions_read(const Graph& graph, const std::vector<Pass>& passes, Id cat) {
  if (is_output(graph, cat)) return false;
  for (const Pass& pass : passes) {
    for (const Id id : pass.nodes) {
      const Node& node = graph[id];
      if (contains(node.in, cat) && (!is(node, Family::kConvolution) || node.in[0] != cat)) return false;
    }
  }
  return true;
}

}  // namespace

void sink_cats(const Graph& graph, std::vector<Pass>& passes, std::vector<bool>& memory) {
  for (Id cat = 0; cat < graph.size(); ++cat) {
    if (!is(graph[cat], Op::kCat) || !only_convolutions_read(graph, passes, cat)) continue;
    const auto from = std::ranges::find_if(passes, [&](const Pass& p) { return contains(p.writes, cat); });
    if (from == passes.end() || reads(graph, *from, cat)) continue;
    std::erase(from->nodes, cat);
    std::erase(from->writes, cat);
    for (const Id in : graph[cat].in) {
      if (!contains(from->nodes, in) || memory[in]) continue;  // there already
      from->writes.push_back(in);
      memory[in] = true;
    }
    for (Pass& pass : passes) {
      if (reads(graph, pass, cat)) pass.nodes.insert(pass.nodes.begin(), cat);
    }
  }
  std::erase_if(passes, [](const Pass& pass) { return pass.nodes.empty(); });
}

}  // namespace upweave
