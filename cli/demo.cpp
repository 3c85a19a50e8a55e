#include <nlohmann/json.hpp>

#include "check.h"
#include "commands.h"
#include "graph/graph.h"
#include "print.h"
#include "request.h"
#include "timing.h"

namespace upweave::cli {
namespace {

bool demo(Request request) {
  Progress progress;
  std::vector<std::vector<std::string>> rows = {
      {"pipeline", "input", "passes", "time", "extra memory", "worst error / bound", ""}};
  nlohmann::json all = nlohmann::json::array();
  bool right = true;
  for (const CatalogEntry& entry : catalog()) {
    if (!is_one_of_five(entry)) continue;
    request.pipeline = entry.slug;
    progress.say("running " + entry.slug);
    Case c(pipeline_of(request).compile(shapes_of(request, Size::kThird), options_of(request)), 1);
    const Weights weights = c.plan.pack(c.parameters());
    const Tensors inputs = c.inputs();
    const double seconds =
        time_runs(5, [&] { c.plan.run(weights, inputs, c.result(), c.extra()), c.wait(); })[2];
    progress.say("checking " + entry.slug);
    const Verdict verdict = compare(c);
    right &= verdict.right();
    const Cost cost = c.plan.cost();
    const Shape& input = c.plan.tensor_shapes().at("input");
    rows.push_back({entry.slug, to_string(input),
                    fmt::format("{} (unfused {})", cost.passes, cost.unfused_passes), time_text(seconds),
                    bytes_text(static_cast<double>(c.plan.workspace_bytes())),
                    fmt::format("{:.3g}", verdict.worst), verdict.right() ? "right" : "WRONG"});
    all.push_back(
        {{"pipeline", entry.slug},
         {"input", input},
         {"passes", cost.passes},
         {"unfused_passes", cost.unfused_passes},
         {"seconds", seconds},
         {"workspace_bytes", c.plan.workspace_bytes()},
         {"worst", std::isfinite(verdict.worst) ? nlohmann::json(verdict.worst) : nlohmann::json("inf")},
         {"right", verdict.right()}});
  }
  progress.clear();
  if (request.json) {
    fmt::print("{}\n", all.dump(2));
    return right;
  }
  print_table(rows);
  fmt::print(
      "\nThe time is one run's, the weights packed before. Every element of every output was compared with a "
      "float64\n"
      "evaluation; 1 would be as far off as the arithmetic may ever be. What to try next:\n"
      "  upweave explain max-max-sum                 which laws made the work disappear\n"
      "  upweave bench layernorm-gelu-scaling        at its real size\n"
      "  upweave verify 'conv_transpose kernel 8 k3 s2 p1 | layer_norm channel | gelu' --input 2x4x9x7\n"
      "  upweave list                                thirty more pipelines\n");
  return right;
}

}  // namespace

void add_demo(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<Request>();
  CLI::App* command = app.add_subcommand(
      "demo", "Runs the five pipelines at a third of their extents, each checked against the reference");
  add_engine(*command, *request);
  command->footer(
      "Examples:\n"
      "  upweave demo\n"
      "  upweave demo --dtype bf16 --threads 1\n"
      "  upweave demo --engine cuda --precision fast");
  command->callback([request, &exit_code] { exit_code = demo(*request) ? 0 : 1; });
}

}  // namespace upweave::cli
