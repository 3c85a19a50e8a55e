#include <nlohmann/json.hpp>

#include "check.h"
#include "commands.h"
#include "graph/graph.h"
#include "print.h"
#include "request.h"
#include "timing.h"

namespace upweave::cli {
namespace {

struct BenchRequest : Request {
  int runs = 7;
  int64_t batch = 2;
};

// The same channels with extents that the reference can follow. Those of several inputs hang together.
Shapes checkable(Shapes shapes, const std::vector<std::string>& inputs) {
  for (const std::string& name : inputs) {
    Shape& input = shapes.at(name);
    input[0] = std::min<int64_t>(input[0], 2);
    for (size_t a = 2; a < input.size() && inputs.size() == 1; ++a) input[a] = std::min<int64_t>(input[a], 8);
  }
  return shapes;
}

bool bench(const BenchRequest& request) {
  if (request.runs < 1) throw invalid("--runs is {}; it must be at least 1", request.runs);
  if (request.batch < 1) throw invalid("--batch is {}; it must be at least 1", request.batch);
  Progress progress;
  const Pipeline pipeline = pipeline_of(request);
  const Options options = options_of(request);
  Shapes shapes = shapes_of(request, Size::kFull);
  if (request.input.empty()) shapes.at("input")[0] = request.batch;

  progress.say("checking against the reference");
  Case small(pipeline.compile(checkable(shapes, pipeline.inputs()), options), 1);
  small.run();
  const Verdict verdict = compare(small);
  const std::string checked_at = input_shapes(small.plan);
  if (!verdict.right()) {
    progress.clear();
    fmt::print(stderr, "upweave: wrong at {}, by {:.3g} of the bound; nothing was timed\n", checked_at,
               verdict.worst);
    return false;
  }

  progress.say("compiling");
  Case c(pipeline.compile(shapes, options), 1);
  const Plan& plan = c.plan;
  progress.say("timing");
  const auto whole = time_runs(request.runs, [&] { c.run(); });
  const Weights weights = plan.pack(c.parameters());
  const Tensors inputs = c.inputs();
  const auto packed =
      time_runs(request.runs, [&] { plan.run(weights, inputs, c.result(), c.extra()), c.wait(); });
  progress.clear();

  const double median = whole[whole.size() / 2], median_packed = packed[packed.size() / 2];
  const Cost cost = plan.cost();
  const char* dtype = request.dtype.empty() ? "f32" : request.dtype.c_str();
  if (request.json) {
    const nlohmann::json facts = {{"pipeline", request.pipeline},
                                  {"engine", request.engine},
                                  {"dtype", dtype},
                                  {"precision", request.precision},
                                  {"algorithm", request.algorithm},
                                  {"threads", request.threads},
                                  {"input", shapes.at(plan.inputs()[0])},
                                  {"output", plan.output_shape()},
                                  {"runs", request.runs},
                                  {"seconds", median},
                                  {"seconds_packed", median_packed},
                                  {"seconds_best", whole.front()},
                                  {"flops", cost.flops},
                                  {"unfused_flops", cost.unfused_flops},
                                  {"bytes", cost.bytes},
                                  {"unfused_bytes", cost.unfused_bytes},
                                  {"workspace_bytes", plan.workspace_bytes()},
                                  {"checked_at", small.plan.tensor_shapes().at(plan.inputs()[0])},
                                  {"worst", verdict.worst}};
    fmt::print("{}\n", facts.dump(2));
    return true;
  }
  fmt::print("{} -> {}, {} on {} ({})\n", input_shapes(plan), to_string(plan.output_shape()), dtype,
             request.engine, request.precision);
  fmt::print("right at {}: the worst element is off by {:.3g} of its bound\n\n", checked_at, verdict.worst);
  const auto rate = [&](double seconds) {
    return fmt::format("{:.3g}", cost.unfused_flops / seconds * 1e-9);
  };
  const auto stream = [&](double seconds) { return fmt::format("{:.3g}", cost.bytes / seconds * 1e-9); };
  print_table({{"", "median", "best", "GFLOP/s", "GB/s"},
               {"weights packed in every run", time_text(median), time_text(whole.front()), rate(median),
                stream(median)},
               {"weights packed once", time_text(median_packed), time_text(packed.front()),
                rate(median_packed), stream(median_packed)}});
  fmt::print(
      "\n{} runs after one to warm up. GFLOP/s counts the pipeline as written ({:.3g} GFLOP; {:.3g} are "
      "done),\n"
      "GB/s what the fused passes move ({:.3g} GB; {:.3g} unfused). Extra memory: {}.\n",
      request.runs, cost.unfused_flops * 1e-9, cost.flops * 1e-9, cost.bytes * 1e-9,
      cost.unfused_bytes * 1e-9, bytes_text(static_cast<double>(plan.workspace_bytes())));
  return true;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<BenchRequest>();
  CLI::App* command =
      app.add_subcommand("bench", "Times a pipeline, after checking it against the reference");
  add_pipeline(*command, *request);
  add_sizes(*command, *request);
  add_engine(*command, *request);
  command->add_option("--runs", request->runs, "How many to take the median of")->capture_default_str();
  command->add_option("--batch", request->batch, "Samples, for a named pipeline without --input")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  upweave bench layernorm-gelu-scaling\n"
      "  upweave bench max-max-sum --batch 16 --threads 1 --algorithm direct\n"
      "  upweave bench 'conv_transpose kernel 64 k4 s2 p1 | relu' --input 8x128x32x32 --dtype bf16 --json");
  command->callback([request, &exit_code] { exit_code = bench(*request) ? 0 : 1; });
}

}  // namespace upweave::cli
