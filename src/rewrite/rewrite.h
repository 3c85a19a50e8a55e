#pragma once
// Laws that make work disappear: one function each, its equation and its condition as its comment, run to a
// fixed point. A rewrite knows nothing of engines.
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace upweave {

// A law that fired: shown by `explain`.
struct Firing {
  std::string law;       // its name
  std::string equation;  // "norm(x + c) = norm(x)"
  std::string where;     // the stages it met
  std::string why;       // why its condition holds here, and where NaN or infinity may come out differently
};

struct Rewritten {
  Graph graph;
  std::vector<Firing> firings;
};

struct Law {
  std::string_view name;
  std::string_view equation;
  // Tries node `id`; on success returns the new graph (shapes inferred) and fills `firing.where` and `.why`.
  std::optional<Graph> (*apply)(const Graph& graph, Id id, Firing& firing);
  bool moves = false;  // two stages change places: so often as there are pairs, unlike what removes or splits
};

// Engines compute in float32, where a number beyond its range is infinite or zero, as it is in PyTorch: 0 *
// 1e39 is NaN. Laws and the reference see what engines see; for f64 the graph stays.
Graph as_engines_see(Graph graph, Dtype dtype);

const std::vector<Law>& laws();         // in the order in which they are tried
Rewritten rewrite(const Graph& graph);  // to a fixed point, or a thousand moves; `graph` has shapes
std::optional<Rewritten> apply_once(const Graph& graph, std::string_view law);  // first match of one law

}  // namespace upweave
