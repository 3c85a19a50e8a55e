// Generated kernels on the CPU: the text that NVRTC would get, compiled for an emulated multiprocessor
// (cuda_emulator/device.h) and run, against the reference. What they compute, where they write, and whether
// their warps can wait for one another for ever is then known without a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "api/road.h"
#include "cuda_cases.h"
#include "eager.h"
#include "engine/cuda/lower.h"
#include "fresh_seed.h"
#include "random_pipeline.h"

namespace upweave::cuda {
namespace {

using testing::Case;

// The end of what is opened by the bracket before `at`.
size_t closing(const std::string& text, size_t at) {
  int depth = 1;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char ch = text[at];
    if (ch == '\\') {
      ++at;
    } else if (ch == '"') {
      quoted = !quoted;
    } else if (!quoted && std::strchr("([{", ch)) {
      ++depth;
    } else if (!quoted && std::strchr(")]}", ch) && --depth == 0) {
      return at;
    }
  }
  throw std::runtime_error("a bracket is not closed");
}

// "mbarrier.try_wait.parity.shared.b64": the instruction that an asm statement is about.
std::string instruction(const std::string& code) {
  std::string line;
  for (size_t at = 0; at < code.size();) {
    size_t end = code.find_first_of("\n;", at);
    if (end == std::string::npos) end = code.size();
    line = code.substr(at, end - at);
    at = end + 1;
    line.erase(0, line.find_first_not_of(" {}"));
    const bool other = line.empty() || line.starts_with(".reg") || line.starts_with("setp") ||
                       line.starts_with("@") || line.starts_with("bra ") || line.ends_with(":");
    if (!other) return line.substr(0, line.find(' '));
  }
  return "";
}

// asm("code" : outputs : inputs : clobbers) as ptx_instruction(outputs..., inputs...).
std::string call_of(const std::string& statement) {
  std::string code, arguments;
  int part = 0;
  for (size_t at = 0; at < statement.size(); ++at) {
    if (statement[at] == ':') {
      ++part;
    } else if (statement[at] == '"') {
      const size_t end = statement.find('"', at + 1);
      if (part == 0) code += statement.substr(at + 1, end - at - 1);
      at = end;
    } else if (statement[at] == '(') {
      const size_t end = closing(statement, at + 1);
      arguments += (arguments.empty() ? "" : ", ") + statement.substr(at + 1, end - at - 1);
      at = end;
    }
  }
  for (size_t at; (at = code.find("\\n")) != std::string::npos;) code.replace(at, 2, "\n");
  std::string name = instruction(code);
  if (name.empty()) return "(void)0";
  for (char& ch : name) {
    if (!isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return fmt::format("ptx_{}({})", name, arguments);
}

// The kernels' text as C++ for the host.
std::string translated(std::string text) {
  auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  };
  replace("extern __shared__ u8 raw[];", "u8* const raw = emulator::shared_memory;");
  replace("asm volatile(", "asm(");
  std::string result;
  size_t at = 0;
  for (size_t next; (next = text.find("asm(", at)) != std::string::npos;) {
    const size_t first = next + 4, end = closing(text, first);
    result += text.substr(at, next - at) + call_of(text.substr(first, end - first));
    at = end + 1;
  }
  return result + text.substr(at);
}

// extern "C" emulate(): all launches, in order.
std::string launches(const Lowered& lowered) {
  std::string text =
      "extern \"C\" void emulate(const u8* const* inputs, u8* output, u8* ws, u8* packed, bool at_once, bool "
      "last_first) {\n"
      "  emulator::order = {at_once, last_first};\n  Args a = {inputs[0], output, ws, packed};\n";
  for (size_t i = 1; i < lowered.inputs.size(); ++i)
    text += fmt::format("  a.more[{}] = inputs[{}];\n", i - 1, i);
  std::set<std::string> declared;  // a kernel may be launched several times
  for (const auto* list : {&lowered.pack, &lowered.run}) {
    for (const Launch& launch : *list) {
      std::vector<std::string> maps;
      for (const TensorView& v : launch.views) {
        if (declared.insert(launch.kernel + std::to_string(&v - launch.views.data())).second)
          text += fmt::format("  static emulator::TensorView {}_{} = {{}};\n", launch.kernel,
                              &v - launch.views.data());
        maps.push_back(fmt::format("{{{{(u64)&{}_{}}}}}", launch.kernel, &v - launch.views.data()));
        if (!v.used) continue;
        std::vector<uint64_t> strides = v.strides;
        strides.insert(strides.begin(), 0);
        text += fmt::format("  {}_{} = {{{} + {}, {}, {}, {}, {{{}}}, {{{}}}, {{{}}}}};\n", launch.kernel,
                            &v - launch.views.data(), v.output ? "output" : "ws", v.offset, v.extents.size(),
                            v.floats ? 4 : 2, v.swizzle, fmt::join(v.extents, ", "), fmt::join(strides, ", "),
                            fmt::join(v.box, ", "));
      }
      std::string parameters;  // Maps, two of them and a SharedLaunch, or a LineLaunch
      for (size_t i = 0; i < maps.size(); i += 3) {
        parameters += fmt::format("{}Maps{{{}, {}, {}}}",
                                  i > 0             ? ", "
                                  : maps.size() > 3 ? ", SharedMaps{"
                                                    : ", ",
                                  maps[i], maps[i + 1], maps[i + 2]);
      }
      if (maps.size() > 3) parameters += "}";
      if (!launch.numbers.empty()) parameters += fmt::format(", {{{}}}", fmt::join(launch.numbers, ", "));
      text += fmt::format("  emulator::launch({}, {}, {}, [&] {{ {}(a{}); }});\n", launch.grid[0],
                          launch.grid[1], launch.block, launch.kernel, parameters);
    }
  }
  return text + "}\n";
}

// A folder that goes away.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "upweave-emulation-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

// Memory from a multiple of 1024 bytes on, poisoned.
struct Block {
  explicit Block(int64_t bytes)
      : size(static_cast<size_t>(bytes)),
        memory(static_cast<unsigned char*>(std::aligned_alloc(1024, (size + 2047) / 1024 * 1024))) {
    std::memset(memory, 0xff, (size + 2047) / 1024 * 1024);
  }
  ~Block() { std::free(memory); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  size_t size;
  unsigned char* memory;
};

// What all kernels make, run twice in different orders: the result, then the extra outputs.
std::vector<std::vector<char>> emulated(const FusedPlan& plan, const Lowered& lowered,
                                        const testing::Data& data, const Case& c) {
  const Folder folder;
  std::ofstream(folder.path / "kernels.cpp") << "#include \"cuda_emulator/device.h\"\n"
                                             << translated(lowered.source) << launches(lowered);
  const std::string command = fmt::format(
      "'{}' -std=c++20 -O1 -w -Wno-psabi -fPIC -shared -I'{}/tests' '{}/kernels.cpp' -o '{}/kernels.so'",
      UPWEAVE_CXX, UPWEAVE_SOURCE_DIR, folder.path.string(), folder.path.string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("the kernels do not compile");
  void* library = dlopen((folder.path / "kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  using Emulate = void (*)(const void* const*, void*, void*, void*, bool, bool);
  const auto emulate = reinterpret_cast<Emulate>(dlsym(library, "emulate"));

  const std::vector<std::string> names = parameter_names(plan.source);
  const int64_t size = count(visible_shape(plan.source)) * size_of(c.dtype);
  std::vector<std::unique_ptr<Block>> inputs;
  std::vector<const void*> input_pointers;
  for (const std::string& name : lowered.inputs) {
    const auto& bytes = data.bytes.at(name);
    inputs.push_back(std::make_unique<Block>(static_cast<int64_t>(bytes.size())));
    std::memcpy(inputs.back()->memory, bytes.data(), bytes.size());
    input_pointers.push_back(inputs.back()->memory);
  }
  std::vector<std::vector<char>> first;
  for (const bool other : {false, true}) {  // copies as late or as early as can be, threads in both orders
    const Block packed(lowered.packed_bytes), workspace(lowered.workspace_bytes), output(size);
    for (const Lowered::Copy& copy : lowered.copies) {
      std::memcpy(packed.memory + copy.offset, data.bytes.at(names[copy.parameter]).data(),
                  static_cast<size_t>(copy.bytes));
    }
    emulate(input_pointers.data(), output.memory, workspace.memory, packed.memory, other, other);
    std::vector<std::vector<char>> results = {{output.memory, output.memory + size}};
    for (const auto& [offset, n] : lowered.extra)
      results.emplace_back(workspace.memory + offset, workspace.memory + offset + n);
    if (first.empty()) first = results;
    EXPECT_TRUE(first == results) << "the order of threads can be seen";
    for (size_t i = 0; i < 1024; ++i) EXPECT_EQ(workspace.memory[workspace.size + i], 0xff);
    for (size_t i = 0; i < 1024; ++i) EXPECT_EQ(output.memory[output.size + i], 0xff);
  }
  dlclose(library);
  return first;
}

class CudaEmulation : public ::testing::TestWithParam<Case> {};

TEST_P(CudaEmulation, MatchesTheReference) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "fibers change stacks behind the sanitizer's back";
#endif
  const Case& c = GetParam();
  const Graph graph = infer(parse_text(c.text), c.shapes);
  const testing::Data data = make_data(graph, c);
  const Options options = {.dtype = c.dtype, .engine = Engine::kCuda, .precision = c.precision};
  const FusedPlan plan = lower_to_plan(parse_text(c.text), c.shapes, options);
  const Lowered lowered = lower(plan, options, Chip{.multiprocessors = 3});  // few: many tiles a block
  std::string said;
  for (const std::string& note : lowered.notes) said += "\n  " + note;
  SCOPED_TRACE(fmt::format("{} of {}, UPWEAVE_TEST_SEED={}{}", c.text, to_string(graph[0].shape),
                           testing::fresh_seed(), said));

  // The kernel is of the kind that the case is meant for.
  const bool fast = c.precision == Precision::kFast;
  const std::string kind = c.name == "random" || c.name == "decoder" ? ""
                           : c.name.starts_with("sweep")             ? "planes go through a ring"
                           : c.name.starts_with("line")              ? "line by line"
                           : c.name.starts_with("whole")             ? "whole lines"
                           : c.name.starts_with("relay") && fast     ? "for the samples before"
                                                                     : "kernel";
  EXPECT_NE(said.find(kind), std::string::npos);
  if (c.name.starts_with("sweep_abreast")) {
    EXPECT_NE(lowered.source.find("kRun = 4;\n  static constexpr int kSideBySide = 1;"), std::string::npos);
  }

  if (c.name == "lines_divided") {
    EXPECT_EQ(std::ranges::count(lowered.run, "conv_0", &Launch::kernel), 2);
  }
  if (c.name == "whole_lines") {  // some units in one block, some tile by tile
    EXPECT_EQ(lowered.source.find("kWhole = 0;"), std::string::npos);
    EXPECT_EQ(lowered.run.back().kernel, "combine_windows_0");
  }

  expect_outputs(graph, data, c, emulated(plan, lowered, data, c));
}

// Each kind of kernel, in few tiles: sweeps whose outputs leave by tensor copies and by stores, two over one
// copy, taps of one width phase alone, blocks side by side; tiles by line; a ring of weights; weights that
// stay; whole lines; and pipelines that are new in every run. UPWEAVE_TEST_EFFORT=full: what runs on GPUs
// too.
std::vector<Case> cases() {
  const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
  if (effort && std::string(effort) == "full") return testing::all_cases();
  const Case few[] = {
      {"sweep",
       "conv_transpose kernel 48 k4 s2 p1 | layer_norm channel | gelu",
       {{"input", {2, 32, 3, 4, 16}}}},
      {"sweep_ragged", "conv_transpose kernel 16 k4 s2 p1 | add bias | tanh", {{"input", {1, 8, 2, 6, 29}}}},
      {"sweep_odd", "conv_transpose kernel 24 k3x1x3 s1x2x2 p1x0x1 | relu", {{"input", {2, 5, 3, 4, 15}}}},
      {"sweep_exp",
       "conv_transpose kernel bias 20 k3 s2 p1 | softmax channel | sigmoid",
       {{"input", {1, 16, 2, 4, 17}}}},
      {"sweep_again",
       "conv_transpose kernel 16 k3 s2 p1 | tanh as y | softmax channel | mul @y",
       {{"input", {1, 16, 2, 4, 16}}}},
      {"sweep_twice",
       "conv_transpose kernel 64 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
       {{"input", {2, 32, 2, 4, 16}}}},
      {"sweep_abreast", "conv_transpose kernel 16 k3 s2 p1 | relu", {{"input", {6, 8, 4, 4, 16}}}},
      {"sweep_stats",
       "conv_transpose kernel 16 k4 s2 p1 | relu as y | max space out top | @y",
       {{"input", {2, 8, 3, 4, 16}}}},
      {"relay",
       "avg_pool 2 | conv_transpose kernel 24 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
       {{"input", {10, 10, 4, 8, 32}}}},
      {"lines",
       "conv_transpose kernel 16 k5 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 8 gw gb",
       {{"input", {20, 7, 9, 8}}}},
      {"lines_stats",
       "conv_transpose kernel bias 16 k5 s1 p1 as c | moments batch out stats | @c | batch_norm w b | tanh | "
       "max_pool 2 out pooled | group_norm 8 gw gb",
       {{"input", {20, 7, 9, 8}}}},
      {"stats",
       "conv_transpose kernel bias 16 k3 s2 p1 | mul 2 as c | moments batch out stats | @c | batch_norm w b "
       "as y "
       "| moments instance out each | @y out whole | mean space",
       {{"input", {3, 8, 3, 5, 6}}}},
      {"ring",
       "conv_transpose kernel 16 k4 s2 p1 | layer_norm channel | gelu",
       {{"input", {1, 20, 3, 5, 18}}}},
      {"held",
       "conv_transpose kernel bias 16 k3 s2 p1 op1 | layer_norm channel | avg_pool 2 | gelu",
       {{"input", {1, 8, 3, 8, 8}}}},
      {"whole_values",
       "conv_transpose kernel 18 k3 s2 p1 | mul scale | max_pool 4 | add bias | tanh",
       {{"input", {3, 5, 3, 14, 15}}}},
      {"whole_line",
       "conv_transpose kernel 16 k3 s2 p1 op1 | max_pool 12 | sum channel",
       {{"input", {1, 16, 30}}}},
      {"sweep_inputs",
       "input x skip gain | conv_transpose kernel 16 k4 s2 p1 | add @skip | tanh | mul @gain",
       {{"x", {2, 8, 2, 4, 16}}, {"skip", {2, 16, 4, 8, 32}}, {"gain", {1, 16, 1, 1, 1}}}},
      {"inputs",  // one convolution over each
       "input x skip | conv_transpose kernel 16 k3 s2 p1 as y | @skip | conv_transpose other 16 k3 s1 p1 | "
       "add "
       "@y | layer_norm channel",
       {{"x", {2, 8, 4, 5}}, {"skip", {2, 4, 7, 9}}}},
      {"whole_lines",
       "conv_transpose kernel bias 18 k3 s2 p1 | mul scale | max_pool 4 | sum channel",
       {{"input", {4, 5, 5, 14, 15}}}},
  };
  std::vector<Case> all;
  for (Case c : few) {
    for (const Precision precision : {Precision::kFast, Precision::kStrict}) {
      c.precision = precision;
      all.push_back(c);
    }
  }
  // An odd number of pieces a block, and a ring with two places: a warpgroup without a piece must not hold
  // one. Strict weights would not fit beside such a ring.
  Case c = {"sweep_uneven", "conv_transpose kernel 64 k4 s2 p1 | relu", {{"input", {11, 128, 8, 16}}}};
  c.precision = Precision::kFast;
  all.push_back(c);
  c = few[0];
  c.values = testing::Values::kWide;  // lo needs a scale of its own
  all.push_back(c);
  c.values = testing::Values::kHuge;
  all.push_back(c);
  c.values = testing::Values::kSpecial;  // float32 products
  all.push_back(c);
  c.values = testing::Values::kNormal;
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    c.dtype = dtype;
    all.push_back(c);
  }
  c = *std::ranges::find(few, "held", &Case::name);  // two lanes store two windows side by side together
  c.precision = Precision::kFast;
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    c.dtype = dtype;
    all.push_back(c);
  }
  // Pooled float32 values in the output's memory and the copy's, two launches.
  c = {"lines_divided",
       "conv_transpose kernel 48 k5 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 3 gw gb",
       {{"input", {24, 7, 11, 12}}}};
  c.dtype = Dtype::kF16;
  all.push_back(c);
  c.precision = Precision::kFast;
  c.dtype = Dtype::kBF16;
  all.push_back(c);
  c.values = testing::Values::kDark;
  all.push_back(c);
  c = few[std::size(few) - 1];  // whole lines of float32 products, and of others' elements
  c.values = testing::Values::kSpecial;
  all.push_back(c);
  c.values = testing::Values::kNormal;
  c.dtype = Dtype::kBF16;
  all.push_back(c);
  // Ordinary convolutions, moves and what else decoders have, by the general road and behind a convolution.
  const Shape image = {2, 4, 5, 6};
  for (const char* text :
       {"conv kernel bias 6 k3x2 s1x2 p2x1 pe1x0 d1x2 g2 | relu as a | pad 1x2 e0x1 reflect | crop 1:x:-3 | "
        "cat @a | matmul m n 8 | pixel_shuffle 2 | conv k b 3 k3 p1 circular",
        "conv_transpose kernel bias 8 k2 s2 as y | upsample 2x1 linear corners | pad 1 replicate | glu "
        "channel | "
        "snake al be eps=0.5 | pixel_unshuffle 2 | upsample 2 linear | crop channels=1:-1",
        "param v | weight_norm g as w | @input | conv @w p1 | batch_norm_given mean var bw bb eps=9 | pow 2 "
        "as p | "
        "upsample 2 nearest | rms_norm channel rw | rms_norm last | pad 0x1 value=0.25 | max_pool 2x1 | "
        "snake s"}) {
    Case decoder{"decoder", text, {{"input", image}, {"v", {6, 4, 3, 3}}}};
    if (!std::string_view(text).starts_with("param")) decoder.shapes.erase("v");
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      decoder.dtype = dtype;
      all.push_back(decoder);
    }
  }
  for (unsigned k = 0; k < 6; ++k) {
    const testing::RandomPipeline random = testing::random_pipeline(uint64_t{testing::fresh_seed()} + k);
    all.push_back({"random", random.text, random.shapes,
                   k % 3 == 0   ? Dtype::kF32
                   : k % 3 == 1 ? Dtype::kF16
                                : Dtype::kBF16,
                   k % 2 ? Precision::kFast : Precision::kStrict});
  }
  for (unsigned k = 0; k < 3; ++k) {
    const uint64_t seed = uint64_t{testing::fresh_seed()} + 100 + k;
    const testing::RandomPipeline random = testing::random_pipeline(seed);
    testing::Random rng(seed);
    all.push_back({"random", testing::with_outputs(random.graph, rng), tensor_shapes(random.graph),
                   k == 0   ? Dtype::kF32
                   : k == 1 ? Dtype::kF16
                            : Dtype::kBF16,
                   k % 2 ? Precision::kFast : Precision::kStrict});
  }
  return all;
}

// Where a mean of a convolution is subtracted from it, or from another mean, rounding that they share must
// cancel as it does one operation at a time in TF32. Inputs around 8: what the mean of the input makes of
// rounded weights is most of their error.
class CudaDifference : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaDifference, KeepsNoRounding) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "fibers change stacks behind the sanitizer's back";
#endif
  const std::string conv = "conv_transpose kernel bias 16 k3 s2 p1";
  Case c{"difference", fmt::format("{} | {}", conv, GetParam()), {{"input", {3, 16, 3, 6, 6}}}};
  c.precision = Precision::kFast;
  const Graph graph = infer(parse_text(c.text), c.shapes);
  testing::Data data = make_data(graph, c, testing::fresh_seed());
  Tensor& input = data.tensors.at("input");
  for (size_t i = 0; i < input.data.size(); ++i) {
    store_element(data.bytes.at("input").data(), c.dtype, static_cast<int64_t>(i), 8 + input.data[i]);
    input.data[i] = load_element(data.bytes.at("input").data(), c.dtype, static_cast<int64_t>(i));
  }
  const Options options = {.dtype = c.dtype, .engine = Engine::kCuda, .precision = c.precision};
  const FusedPlan plan = lower_to_plan(parse_text(c.text), c.shapes, options);
  const Lowered lowered = lower(plan, options, Chip{.multiprocessors = 3});
  const std::vector<char> result = emulated(plan, lowered, data, c).front();
  const Graph convolution = infer(parse_text(conv), c.shapes);
  const testing::Errors errors =
      testing::errors_of(graph, data.tensors, evaluate(convolution, data.tensors),
                         evaluate(convolution, testing::as_tf32(data.tensors)), 2,
                         [&](int64_t i) { return load_element(result.data(), c.dtype, i); });
  EXPECT_LE(errors.largest, errors.allowed)
      << c.text << " UPWEAVE_TEST_SEED=" << testing::fresh_seed() << "\n"
      << print_text(plan.graph);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDifference, ::testing::ValuesIn(testing::kDifferences));

INSTANTIATE_TEST_SUITE_P(All, CudaEmulation, ::testing::ValuesIn(cases()), [](const auto& i) {
  return std::to_string(i.index) + "_" + testing::with(i.param);
});

}  // namespace
}  // namespace upweave::cuda
