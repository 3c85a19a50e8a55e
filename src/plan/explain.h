#pragma once
// A plan told to a person, and the same facts for a program.
#include <string>
#include <vector>

#include "plan/plan.h"

namespace upweave {

std::string explain(const FusedPlan& plan, const Options& options,
                    const std::vector<std::string>& engine_lines);
std::string explain_json(const FusedPlan& plan, const Options& options,
                         const std::vector<std::string>& engine_lines);

}  // namespace upweave
