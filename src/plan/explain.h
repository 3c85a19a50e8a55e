#pragma once
// A plan told to a person, and the same facts for a program.
#include <string>
#include <vector>

#include "plan/plan.h"

namespace upweave {

std::string explain(const FusedPlan& plan, const Options& options,
                    const std::vector<std::string>& engine_lines);
// The result of each stage of the road, node by node: the graph as written and as rewritten, the plan's
// passes and places, the engine's launches.
std::string explain_stages(const FusedPlan& plan, const Options& options,
                           const std::vector<std::string>& engine_lines);
std::string explain_json(const FusedPlan& plan, const Options& options,
                         const std::vector<std::string>& engine_lines);

}  // namespace upweave
