#include "api/road.h"

#include "base/check.h"
#include "base/log.h"
#include "base/words.h"
#include "graph/check.h"
#include "graph/text.h"
#include "plan/check.h"
#include "rewrite/check.h"

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
  LogTimer whole, stage;

  Graph written = as_engines_see(infer(pipeline, shapes), options.dtype);
  if (checks_stages()) check(written);
  check_empty_batch(written);
  log_debug("inferred {} nodes in {:.3f} ms", written.size(), stage.lap());

  Rewritten rewritten = rewrite(written);
  if (checks_stages()) check(rewritten, written);
  for (const Firing& firing : rewritten.firings) log_debug("law {}: {}", firing.law, firing.where);
  log_debug("rewrote them by {} laws in {:.3f} ms", rewritten.firings.size(), stage.lap());

  FusedPlan plan = make_plan(std::move(written), std::move(rewritten),
                             target.value_or(engine_of(options.engine).target), options);
  if (checks_stages()) check(plan);
  for (const Pass& pass : plan.passes)
    log_debug("pass of {} operations ends because {}", pass.nodes.size(), pass.why);
  if (logs(LogLevel::kInfo)) {
    log_info("planned in {:.3f} ms: {} passes for {}, {:.3f} GFLOP, {:.1f} MB: {}", whole.lap(),
             plan.cost.passes, plan.cost.unfused_passes, plan.cost.flops / 1e9, plan.cost.bytes / 1e6,
             excerpt(print_text(plan.source)));
  }
  return plan;
}

std::unique_ptr<const Program> lower_to_program(std::shared_ptr<const FusedPlan> plan,
                                                const Options& options) {
  LogTimer timer;
  std::unique_ptr<const Program> program = engine_of(options.engine).compile(std::move(plan), options);
  log_info("compiled for {} in {:.3f} ms: {} bytes of packed weights, {} of workspace",
           name_of(options.engine), timer.lap(), program->packed_bytes(), program->workspace_bytes());
  if (logs(LogLevel::kDebug)) {
    for (const std::string& line : program->describe()) log_debug("{}: {}", name_of(options.engine), line);
  }
  return program;
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
