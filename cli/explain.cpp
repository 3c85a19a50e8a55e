#include "plan/explain.h"

#include <fmt/format.h>

#include "commands.h"
#include "engine/engine.h"
#include "request.h"

namespace upweave::cli {

void add_explain(CLI::App& app) {
  auto request = std::make_shared<Request>();
  CLI::App* command =
      app.add_subcommand("explain", "Shows what becomes of a pipeline: laws, passes, operations, bytes");
  add_pipeline(*command, *request);
  add_sizes(*command, *request);
  add_engine(*command, *request);
  command->footer(
      "Examples:\n"
      "  upweave explain max-max-sum\n"
      "  upweave explain layernorm-gelu-scaling --input 2x32x16x32x32 --set stride=2,1,2\n"
      "  upweave explain 'conv_transpose kernel 64 k3 s2 p1 | max_pool 2 | gelu' --input 8x32x28x28\n"
      "  upweave explain 'conv_transpose kernel | mul t:full' --input 1x3x8x8 --shape kernel=3x4x3x3\n"
      "  upweave explain 'input x skip | conv_transpose kernel 8 k2 s2 | add @skip' --input x=1x3x8x8 "
      "--input "
      "skip=1x8x16x16\n"
      "  upweave explain max-max-sum --engine cuda       # kernels and predicted time, with or without a "
      "GPU\n"
      "  upweave explain max-max-sum --json | jq .passes");
  command->callback([request] {
    const Pipeline pipeline = pipeline_of(*request);
    const Shapes shapes = shapes_of(*request, Size::kFull);
    const Options options = options_of(*request);
    if (options.engine == Engine::kCuda) {  // nothing will run, so that no GPU is needed
      const FusedPlan plan =
          make_plan(infer(pipeline.graph(), shapes), target_of(options.engine), options.dtype);
      const std::vector<std::string> lines = describe_cuda(plan, options);
      fmt::print("{}\n", request->json ? explain_json(plan, options, lines) : explain(plan, options, lines));
      return;
    }
    const Plan plan = pipeline.compile(shapes, options);
    fmt::print("{}\n", request->json ? plan.explain_json() : plan.explain());
  });
}

}  // namespace upweave::cli
