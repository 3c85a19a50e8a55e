#include <nlohmann/json.hpp>

#include "check.h"
#include "commands.h"
#include "graph/graph.h"
#include "print.h"
#include "request.h"

namespace upweave::cli {
namespace {

struct VerifyRequest : Request {
  uint64_t seed = 1;
};

// A JSON number, or a word where JSON has none.
nlohmann::json number(double v) {
  return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(fmt::format("{}", v));
}

bool verify(const VerifyRequest& request) {
  Progress progress;
  progress.say("compiling");
  const Plan plan = pipeline_of(request).compile(shapes_of(request, Size::kSmall), options_of(request));
  Case c(plan, request.seed);
  progress.say("running on " + request.engine);
  c.run();
  progress.say("running the reference");
  const Verdict verdict = compare(c);
  progress.clear();
  const Shape& input = plan.tensor_shapes().at(plan.inputs()[0]);
  const char* dtype = request.dtype.empty() ? "f32" : request.dtype.c_str();
  if (request.json) {
    const nlohmann::json facts = {
        {"pipeline", request.pipeline},   {"engine", request.engine},     {"dtype", dtype},
        {"precision", request.precision}, {"seed", request.seed},         {"input", input},
        {"output", plan.output_shape()},  {"elements", verdict.elements}, {"worst", number(verdict.worst)},
        {"index", verdict.index},         {"got", number(verdict.got)},   {"want", number(verdict.want)},
        {"bound", number(verdict.bound)}, {"right", verdict.right()}};
    fmt::print("{}\n", facts.dump(2));
  } else {
    fmt::print("{} -> {}, {} on {} ({}), seed {}\n", input_shapes(plan), to_string(plan.output_shape()),
               dtype, request.engine, request.precision, request.seed);
    fmt::print("{}: the worst of {} elements is off by {:.3g} of its bound\n",
               verdict.right() ? "right" : "WRONG", verdict.elements, verdict.worst);
    fmt::print("  element {}: {} for {}, bound {:.3g}\n", verdict.index, verdict.got, verdict.want,
               verdict.bound);
  }
  return verdict.right();
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<VerifyRequest>();
  CLI::App* command =
      app.add_subcommand("verify", "Compares an engine with the float64 reference on seeded data");
  add_pipeline(*command, *request);
  add_sizes(*command, *request);
  add_engine(*command, *request);
  command->add_option("--seed", request->seed, "Of the data")->capture_default_str();
  command->footer(
      "The bound of each element is derived from the element type and the terms that went into it. Exits "
      "with 1\n"
      "if any element is outside its bound. A named pipeline is verified at a small size unless --input says "
      "one.\n"
      "Examples:\n"
      "  upweave verify max-max-sum\n"
      "  upweave verify batchnorm-tanh-maxpool-groupnorm --dtype bf16 --seed 7\n"
      "  upweave verify 'conv_transpose kernel 64 k3 s2x1 p1 | softmax channel' --input 2x16x9x7\n"
      "  upweave verify layernorm-gelu-scaling --set stride=2,1,3 --set output_padding=0 --json");
  command->callback([request, &exit_code] { exit_code = verify(*request) ? 0 : 1; });
}

}  // namespace upweave::cli
