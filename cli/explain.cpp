#include "plan/explain.h"

#include <fmt/format.h>

#include "api/road.h"
#include "commands.h"
#include "request.h"

namespace upweave::cli {
namespace {

struct ExplainRequest : Request {
  bool stages = false;
};

void print_explanation(const ExplainRequest& request) {
  const Pipeline pipeline = pipeline_of(request);
  const Shapes shapes = shapes_of(request, Size::kFull);
  const Options options = options_of(request);
  // Nothing will run, so that no device is needed.
  const auto plan = std::make_shared<const FusedPlan>(lower_to_plan(pipeline.graph(), shapes, options));
  const auto tell = request.json ? explain_json : request.stages ? explain_stages : explain;
  fmt::print("{}\n", tell(*plan, options, describe(plan, options)));
}

}  // namespace

void add_explain(CLI::App& app) {
  auto request = std::make_shared<ExplainRequest>();
  CLI::App* command =
      app.add_subcommand("explain", "Shows what becomes of a pipeline: laws, passes, operations, bytes");
  add_pipeline(*command, *request);
  add_sizes(*command, *request);
  add_engine(*command, *request);
  command
      ->add_flag("--stages", request->stages,
                 "Print what each stage makes of it: graph, rewritten graph, plan, launches")
      ->excludes("--json");
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
      "  upweave explain max-max-sum --stages            # every node, pass, place and launch by its number\n"
      "  upweave explain max-max-sum --json | jq .passes");
  command->callback([request] { print_explanation(*request); });
}

}  // namespace upweave::cli
