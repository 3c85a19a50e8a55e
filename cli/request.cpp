#include "request.h"

#include <algorithm>
#include <charconv>

#include "base/words.h"
#include "graph/graph.h"

namespace upweave::cli {
namespace {

// A name has hyphens and nothing that a text has: "max-max-sum", not "gelu" nor "clamp -1 1".
bool looks_like_name(const std::string& text) {
  return text.find('-') != text.npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '-'; });
}

// The same pipeline with fewer values. kThird keeps the channels; kSmall has few, and odd extents that differ
// along each axis, so that mistakes show.
Shapes shrink(Shapes shapes, Size size) {
  if (size == Size::kFull) return shapes;
  Shape& input = shapes.at("input");
  const size_t spatial = input.size() - 2;
  const int64_t small[] = {7, 6, 5};
  const bool third = size == Size::kThird;
  input[0] = third ? 1 : std::min<int64_t>(input[0], 2);
  for (size_t a = 0; a < spatial; ++a) {
    input[a + 2] =
        third ? std::max<int64_t>(input[a + 2] / 3, 4) : std::min(input[a + 2], small[3 - spatial + a]);
  }
  if (third) return shapes;
  input[1] = std::min<int64_t>(input[1], 6);
  for (auto& [name, shape] : shapes) {
    if (name != "input" && shape.size() > 2) shape[1] = std::min<int64_t>(shape[1], 16);
  }
  return shapes;
}

}  // namespace

void add_pipeline(CLI::App& command, Request& request) {
  command
      .add_option("pipeline", request.pipeline,
                  "A name from `upweave list` (a part that only one has is enough), or a text")
      ->required()
      ->type_name("NAME_OR_TEXT");
  command
      .add_option("--set", request.set,
                  "A value for a $name: stride=2, padding=1,0,1, stride_h=3, clamp_min=-1")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

void add_sizes(CLI::App& command, Request& request) {
  command
      .add_option("--input", request.input,
                  "The input's shape: 2x32x16x32x32; x=2x8x9x9 where the text names several")
      ->type_name("SHAPE")
      ->allow_extra_args(false);
  command.add_option("--shape", request.shape, "A parameter's shape: kernel=32x64x3x3x3")
      ->type_name("NAME=SHAPE")
      ->allow_extra_args(false);
}

void add_engine(CLI::App& command, Request& request) {
  command.add_option("--engine", request.engine, words<Engine>())->capture_default_str();
  command.add_option("--dtype", request.dtype, "f32, f16, bf16, or f64 (reference only)");
  command.add_option("--precision", request.precision, "strict (as float32) or fast (as TF32)")
      ->capture_default_str();
  command.add_option("--algorithm", request.algorithm, "auto, or direct (no transforms)")
      ->capture_default_str();
  command.add_option("--threads", request.threads, "0: all")->capture_default_str();
  command.add_flag("--json", request.json, "Print JSON");
}

const CatalogEntry* entry_of(const Request& request) {
  const std::string& word = request.pipeline;
  std::vector<const CatalogEntry*> found;
  for (const CatalogEntry& entry : catalog()) {
    if (entry.slug == word) return &entry;
    if (looks_like_name(word) && entry.slug.find(word) != entry.slug.npos) found.push_back(&entry);
  }
  // The five come before the chains that resemble them.
  if (std::count_if(found.begin(), found.end(), [](auto* entry) { return is_one_of_five(*entry); }) == 1) {
    std::erase_if(found, [](auto* entry) { return !is_one_of_five(*entry); });
  }
  if (found.empty()) {
    if (looks_like_name(word)) throw invalid("no pipeline is called '{}'; `upweave list` shows them", word);
    return nullptr;
  }
  if (found.size() > 1) {
    throw invalid("'{}' is part of {} names, among them {} and {}", word, found.size(), found[0]->slug,
                  found[1]->slug);
  }
  return found[0];
}

bool is_one_of_five(const CatalogEntry& entry) { return entry.slug.starts_with("conv-transpose"); }

Pipeline pipeline_of(const Request& request) {
  Settings settings;
  for (const std::string& text : request.set) {
    const auto [name, value] = split_pair(text, "--set");
    settings[name] = value;
  }
  if (const CatalogEntry* entry = entry_of(request)) return Pipeline::named(entry->slug, settings);
  return Pipeline::parse(request.pipeline, settings);
}

Options options_of(const Request& request) {
  Options options;
  options.dtype = request.dtype.empty() ? Dtype::kF32 : named<Dtype>("--dtype", request.dtype);
  options.engine = named<Engine>("--engine", request.engine);
  options.precision = named<Precision>("--precision", request.precision);
  options.algorithm = named<Algorithm>("--algorithm", request.algorithm);
  options.threads = request.threads;
  return options;
}

Shapes shapes_of(const Request& request, Size size) {
  const CatalogEntry* entry = entry_of(request);
  Shapes shapes;
  if (entry) shapes = request.input.empty() ? shrink(entry->shapes, size) : entry->shapes;
  const std::vector<std::string> inputs = pipeline_of(request).inputs();
  for (const auto& [name, text] : by_input(request.input, inputs))
    shapes[name] = parse_shape(text, "--input");
  for (const std::string& name : inputs) {
    if (!shapes.contains(name))
      throw invalid("--input{} is missing: a text has no sizes of its own",
                    inputs.size() > 1 ? fmt::format(" {}=SHAPE", name) : "");
  }
  // The kernel follows the input's channels unless somebody says otherwise.
  const Shape& input = shapes[inputs[0]];
  if (const auto it = shapes.find("kernel"); it != shapes.end() && input.size() > 1) it->second[0] = input[1];
  for (const std::string& text : request.shape) {
    const auto [name, value] = split_pair(text, "--shape");
    shapes[name] = parse_shape(value, "--shape");
  }
  return shapes;
}

std::map<std::string, std::string> by_input(const std::vector<std::string>& options,
                                            const std::vector<std::string>& inputs) {
  std::map<std::string, std::string> result;
  for (const std::string& text : options) {
    const bool named = text.find('=') != text.npos;
    if (!named && inputs.size() > 1)
      throw invalid("--input is '{}'; the pipeline has the inputs {}: say which, as in {}={}", text,
                    listed(inputs), inputs[0], text);
    const auto [name, value] =
        named ? split_pair(text, "--input") : std::pair<std::string, std::string>{inputs[0], text};
    if (std::find(inputs.begin(), inputs.end(), name) == inputs.end())
      throw invalid("--input {} is none of the pipeline's inputs: {}", name, listed(inputs));
    if (!result.emplace(name, value).second) throw invalid("--input {} is given twice", name);
  }
  return result;
}

std::pair<std::string, std::string> split_pair(const std::string& text, const char* option) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0 || equals + 1 == text.size()) {
    throw invalid("{} is '{}'; it must be like name=value", option, text);
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Shape parse_shape(const std::string& text, const char* option) {
  Shape shape;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (true) {
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(p, end, extent);
    if (error != std::errc() || (next != end && *next != 'x' && *next != ',')) {
      throw invalid("{} is '{}'; it must be like 2x32x16x32x32", option, text);
    }
    shape.push_back(extent);
    if (next == end) return shape;
    p = next + 1;
  }
}

}  // namespace upweave::cli
