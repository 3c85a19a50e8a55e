#pragma once
// The road that every pipeline goes: infer -> rewrite -> plan -> engine. Compiling, explaining, verifying and
// the tests all go along it; each stage's result is checked (base/check.h) and told (base/log.h) on the way.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace upweave {

// `target` instead of the engine's own.
FusedPlan lower_to_plan(const Graph& pipeline, const Shapes& shapes, const Options& options,
                        const std::optional<Target>& target = {});
std::unique_ptr<const Program> lower_to_program(std::shared_ptr<const FusedPlan> plan,
                                                const Options& options);

// What the program would say of itself; needs no device. Nothing is compiled to predict, if the engine can.
std::vector<std::string> describe(std::shared_ptr<const FusedPlan> plan, const Options& options);
double predict(std::shared_ptr<const FusedPlan> plan, const Options& options);

}  // namespace upweave
