#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "api/device.h"
#include "base/dtype.h"
#include "base/words.h"
#include "commands.h"
#include "graph/graph.h"
#include "io/npy.h"
#include "print.h"
#include "request.h"

namespace upweave::cli {
namespace {

struct RunRequest : Request {
  std::vector<std::string> params, outputs;
};

// The array's elements as `dtype`, rounded once where that is narrower.
std::vector<std::byte> convert(NpyArray array, Dtype dtype) {
  if (array.dtype == dtype) return std::move(array.data);
  const int64_t n = count(array.shape);
  std::vector<std::byte> result(static_cast<size_t>(n * size_of(dtype)));
  for (int64_t i = 0; i < n; ++i)
    store_element(result.data(), dtype, i, load_element(array.data.data(), array.dtype, i));
  return result;
}

// Where each output goes: FILE.npy for the result, NAME=FILE.npy for an extra output. A file's name with a
// '=' in it stands behind a name of its own, output=FILE.npy.
std::map<std::string, std::string> output_files(const RunRequest& request, const Graph& graph) {
  std::map<std::string, std::string> files;
  for (const std::string& text : request.outputs) {
    const auto [name, path] = text.find('=') == text.npos
                                  ? std::pair<std::string, std::string>{"output", text}
                                  : split_pair(text, "--output");
    if (name != "output" &&
        std::ranges::find(graph.extra_outputs, name, &Output::name) == graph.extra_outputs.end())
      throw invalid("--output {} is none of the pipeline's outputs", name);
    if (!files.emplace(name, path).second) throw invalid("--output {} is given twice", name);
  }
  if (!files.contains("output")) throw invalid("the result's --output FILE.npy is missing");
  for (const Output& output : graph.extra_outputs) {
    if (!files.contains(output.name))
      throw invalid("output {} is missing: add --output {}=FILE.npy", output.name, output.name);
  }
  return files;
}

void run(const RunRequest& request) {
  Progress progress;
  const Pipeline pipeline = pipeline_of(request);
  const std::map<std::string, std::string> files = output_files(request, pipeline.graph());
  const std::string& output_file = files.at("output");
  Options options = options_of(request);
  std::optional<Dtype> as_u2;
  if (options.dtype == Dtype::kF16 || options.dtype == Dtype::kBF16) as_u2 = options.dtype;

  std::map<std::string, NpyArray> arrays;
  const auto read = [&](const std::string& name, const std::string& path) {
    progress.say("reading " + excerpt(path));
    if (!arrays.emplace(name, read_npy(path, as_u2)).second) throw invalid("--param {} is given twice", name);
  };
  const std::vector<std::string> inputs = pipeline.inputs();
  const std::map<std::string, std::string> files_in = by_input(request.input, inputs);
  for (const auto& [name, path] : files_in) read(name, path);
  for (const std::string& name : inputs) {
    if (!arrays.contains(name)) throw invalid("input {} is missing: add --input {}=FILE.npy", name, name);
  }
  const auto names = pipeline.parameters();
  for (const std::string& text : request.params) {
    const auto [name, path] = split_pair(text, "--param");
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Error(Status::kInvalid, fmt::format("--param {} is none of the pipeline's parameters: {}",
                                                excerpt(name), listed(names)));
    }
    read(name, path);
  }
  for (const std::string& name : names) {
    if (!arrays.contains(name)) throw invalid("parameter {} is missing: add --param {}=FILE.npy", name, name);
  }
  if (request.dtype.empty()) options.dtype = arrays.at(inputs[0]).dtype;
  if (options.dtype == Dtype::kF64 && options.engine != Engine::kReference) {
    throw invalid("{} holds f64, which runs on the reference engine only; --dtype f32 converts",
                  files_in.at(inputs[0]));
  }

  Shapes shapes;
  for (const auto& [name, array] : arrays) shapes[name] = array.shape;
  progress.say("compiling");
  const Plan plan = pipeline.compile(shapes, options);
  std::map<std::string, std::vector<std::byte>> data;
  Tensors tensors;
  for (auto& [name, array] : arrays)
    tensors[name] = (data[name] = convert(std::move(array), options.dtype)).data();
  std::vector<std::byte> output(static_cast<size_t>(count(plan.output_shape()) * size_of(options.dtype)));
  std::map<std::string, std::vector<std::byte>> extra;
  Outputs extra_pointers;
  for (const OutputInfo& info : plan.extra_outputs()) {
    extra[info.name].resize(static_cast<size_t>(count(info.shape) * size_of(info.dtype)));
    extra_pointers[info.name] = extra[info.name].data();
  }

  progress.say("running");
  const auto start = std::chrono::steady_clock::now();
  run_from_host(plan, tensors, output.data(), extra_pointers);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const OutputInfo& info : plan.extra_outputs()) {
    progress.say("writing " + excerpt(files.at(info.name)));
    write_npy(files.at(info.name), info.shape, info.dtype, extra.at(info.name).data());
  }
  progress.say("writing " + excerpt(output_file));
  // An error means that there is no output: what is said of it is said before it appears.
  write_npy(output_file, plan.output_shape(), options.dtype, output.data(), [&] {
    progress.clear();
    if (request.json) {
      nlohmann::json facts = {{"output", output_file},
                              {"shape", plan.output_shape()},
                              {"dtype", name_of(options.dtype)},
                              {"engine", request.engine},
                              {"seconds", seconds},
                              {"workspace_bytes", plan.workspace_bytes()}};
      for (const OutputInfo& info : plan.extra_outputs()) {
        facts["extra_outputs"][info.name] = {
            {"file", files.at(info.name)}, {"shape", info.shape}, {"dtype", name_of(info.dtype)}};
      }
      fmt::print("{}\n", facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("{}: {} {}, {} on {}\n", output_file, to_string(plan.output_shape()), name_of(options.dtype),
                 time_text(seconds), request.engine);
    }
    flush_output();
  });
}

}  // namespace

void add_run(CLI::App& app) {
  auto request = std::make_shared<RunRequest>();
  CLI::App* command = app.add_subcommand("run", "Runs a pipeline on tensors from .npy files");
  add_pipeline(*command, *request);
  command->add_option("--input", request->input, "The input tensor; skip=s.npy where the text names several")
      ->required()
      ->type_name("FILE.npy")
      ->allow_extra_args(false);
  command->add_option("--param", request->params, "A parameter: kernel=k.npy")
      ->type_name("NAME=FILE.npy")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--output", request->outputs,
          "Where the result goes, whole or not at all; stats=s.npy for what the text gives out as stats")
      ->required()
      ->type_name("FILE.npy")
      ->allow_extra_args(false);
  add_engine(*command, *request);
  command->footer(
      "Sizes come from the tensors. The element type is the input's; --dtype converts, and says what files "
      "of\n"
      "two-byte integers hold.\n"
      "Examples:\n"
      "  upweave run max-max-sum --input x.npy --param kernel=k.npy --param conv_bias=b.npy --output y.npy\n"
      "  upweave run layernorm-gelu-scaling --input x.npy --param kernel=k.npy --set stride=2,2,2 --set "
      "padding=1 \\\n"
      "      --set scaling_factor=0.5 --output y.npy --threads 2\n"
      "  upweave run 'conv_transpose kernel s2 | relu' --input x.npy --param kernel=k.npy --output y.npy "
      "--dtype bf16\n"
      "  upweave run 'input x skip | conv_transpose kernel s2 | add @skip' --input x=x.npy --input "
      "skip=s.npy "
      "\\\n"
      "      --param kernel=k.npy --output y.npy");
  command->callback([request] { run(*request); });
}

}  // namespace upweave::cli
