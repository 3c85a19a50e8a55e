#include "api/road.h"

namespace upweave {
namespace {

void check(const Options& options) {
  if (options.threads < 0) throw invalid("threads is {}; it must be at least 0 (0: all)", options.threads);
  if (options.dtype == Dtype::kF64 && options.engine != Engine::kReference) {
    throw fail(Status::kUnsupported, "dtype is f64, which runs on the reference engine only");
  }
}

bool empty(const Graph& written) { return count(visible_shape(written)) == 0; }

void check_empty_batch(const Graph& written) {
  if (!empty(written)) return;
  for (const auto& [name, value] : written.extra_outputs) {
    if (const Shape shape = visible_shape(written, value); count(shape) > 0)
      throw invalid("batch_size is 0, of which the extra output '{}' of shape {} has no value", name,
                    to_string(shape));
  }
}

}  // namespace

FusedPlan lower_to_plan(const Graph& pipeline, const Shapes& shapes, const Options& options,
                        const std::optional<Target>& target) {
  check(options);
  Graph written = as_engines_see(infer(pipeline, shapes), options.dtype);
  check_empty_batch(written);
  Rewritten rewritten = rewrite(written);
  return make_plan(std::move(written), std::move(rewritten),
                   target.value_or(engine_of(options.engine).target), options.dtype);
}

std::unique_ptr<const Program> lower_to_program(std::shared_ptr<const FusedPlan> plan,
                                                const Options& options) {
  return engine_of(options.engine).compile(std::move(plan), options);
}

std::vector<std::string> describe(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (empty(plan->source)) return {"an empty batch: nothing runs"};
  const EngineEntry& engine = engine_of(options.engine);
  return engine.describe ? engine.describe(*plan, options) : lower_to_program(plan, options)->describe();
}

double predict(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  if (empty(plan->source)) return 0;
  const EngineEntry& engine = engine_of(options.engine);
  return engine.predict ? engine.predict(*plan, options)
                        : lower_to_program(plan, options)->predicted_seconds();
}

}  // namespace upweave
