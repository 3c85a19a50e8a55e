// Every engine against PyTorch: cases that make_torch_cases.py computed in float64, independently of the
// reference. UPWEAVE_TORCH_CASES names another manifest than the one that comes with the repository.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "engine/reference/reference.h"
#include "graph/text.h"
#include "io/npy.h"
#include "rewrite/rewrite.h"

namespace upweave {
namespace {

struct Case {
  std::string name, text, file;
  int64_t offset = 0;
  std::vector<std::pair<std::string, Shape>> tensors;
  Shape output;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string manifest() {
  const char* given = std::getenv("UPWEAVE_TORCH_CASES");
  return given ? given : UPWEAVE_TEST_DATA "/torch/cases.jsonl";
}

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  std::ifstream lines(manifest());
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    cases.push_back(
        {json["name"], json["text"], json["file"], json["offset"], json["tensors"], json["output"]});
  }
  return cases;
}

const std::vector<double>& read_file(const std::string& name) {
  static std::map<std::string, std::vector<double>> files;
  auto [it, fresh] = files.try_emplace(name);
  if (fresh) {
    const NpyArray array = read_npy(manifest().substr(0, manifest().rfind('/') + 1) + name);
    if (array.dtype != Dtype::kF64) throw invalid("{} is not float64", name);
    it->second.resize(array.data.size() / sizeof(double));
    std::memcpy(it->second.data(), array.data.data(), array.data.size());
  }
  return it->second;
}

class Torch : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    const double* next = read_file(c.file).data() + c.offset;
    Shapes shapes;
    for (const auto& [name, shape] : c.tensors) {
      shapes[name] = shape;
      tensors_[name] = {shape, {next, next + count(shape)}, {}};
      next += count(shape);
    }
    expected_.assign(next, next + count(c.output));
    graph_ = infer(parse_text(c.text), shapes);
    ASSERT_EQ(visible_shape(graph_), c.output);
  }

  // Both sides round: PyTorch's value and ours may each be off by the bound.
  std::vector<double> float64_bound() const {
    std::vector<double> result = bound(float64());
    for (double& b : result) b *= 2;
    return result;
  }

  // Bounds count on sums that are off by 16 units however many their terms are, as an engine's blocked ones
  // are. Plain sums of n equal numbers are off by up to n units, and no set has more elements than its
  // tensor.
  Rounding float64() const {
    int64_t most = 16;
    for (const Node& node : graph_.nodes) most = std::max(most, count(node.shape));
    const double unit = 0x1p-53 * static_cast<double>(most) / 16;
    return {.unit = unit, .product = unit};
  }

  // How far arithmetic with this rounding may be off, elementwise, for the pipeline as written.
  std::vector<double> bound(const Rounding& rounding) const {
    return evaluate(graph_, tensors_, &rounding).err;
  }

  // The engine's answer in every element type.
  void check(Engine engine, const Rounding& rounding) const;

  std::map<std::string, Tensor> tensors_;
  std::vector<double> expected_;
  Graph graph_;
};

// NaN must meet NaN and an infinity itself; numbers must be within their bound.
testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                              const std::vector<double>& bound) {
  if (actual.size() != expected.size() || bound.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " values instead of " << expected.size();
  }
  size_t wrong = 0;
  std::string first;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i], e = expected[i];
    const bool same = a == e || (std::isnan(a) && std::isnan(e));
    // A bound that is no number would accept everything: it counts as wrong.
    if (same || (std::isfinite(e) && std::fabs(a - e) <= bound[i] && std::isfinite(bound[i]))) continue;
    if (wrong++ == 0) first = fmt::format("[{}] is {} instead of {}, bound {}", i, a, e, bound[i]);
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong << " of " << expected.size() << " are wrong: " << first;
}

TEST_P(Torch, Reference) {
  EXPECT_TRUE(near(evaluate(graph_, tensors_).data, expected_, float64_bound())) << GetParam().text;
}

// The laws are exact in real arithmetic, so what they make must stay inside the bound of what was written.
TEST_P(Torch, Rewritten) {
  const Graph rewritten = rewrite(graph_).graph;
  EXPECT_TRUE(near(evaluate(rewritten, tensors_).data, expected_, float64_bound()))
      << GetParam().text << "\nbecame " << print_text(rewritten);
}

// Through the public road: parse, compile, run. The tensors are float16 and bfloat16 numbers at once, so
// every element type has the same expected output.
std::vector<double> run(const Case& c, const std::map<std::string, Tensor>& tensors, const Options& options) {
  std::map<std::string, std::vector<std::byte>> typed;
  Shapes shapes;
  Tensors pointers;
  for (const auto& [name, tensor] : tensors) {
    std::vector<std::byte>& bytes = typed[name];
    bytes.resize(tensor.data.size() * static_cast<size_t>(size_of(options.dtype)));
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      store_element(bytes.data(), options.dtype, static_cast<int64_t>(i), tensor.data[i]);
    }
    shapes[name] = tensor.shape;
    pointers[name] = bytes.data();
  }
  const Plan plan = Pipeline::parse(c.text).compile(shapes, options);
  EXPECT_EQ(plan.output_shape(), c.output);
  std::vector<std::byte> output(static_cast<size_t>(count(plan.output_shape()) * size_of(options.dtype)));
  plan.run(pointers, output.data());
  return load_tensor(output.data(), options.dtype, plan.output_shape()).data;
}

void Torch::check(Engine engine, const Rounding& rounding) const {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    std::vector<double> allowed = bound(rounding), expected = expected_;
    for (size_t i = 0; i < expected.size(); ++i) {
      allowed[i] = element_bound(expected[i], allowed[i], dtype);
      if (std::fabs(expected[i]) > largest(dtype)) expected[i] = std::copysign(INFINITY, expected[i]);
    }
    const Options options = {.dtype = dtype, .engine = engine, .threads = 2};
    EXPECT_TRUE(near(run(GetParam(), tensors_, options), expected, allowed))
        << GetParam().text << ", bytes per element: " << size_of(dtype);
  }
}

TEST_P(Torch, ReferenceEngine) { check(Engine::kReference, float64()); }

TEST_P(Torch, CpuEngine) { check(Engine::kCpu, {}); }

INSTANTIATE_TEST_SUITE_P(Case, Torch, testing::ValuesIn(read_cases()),
                         [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

// Without its manifest every test above would vanish in silence.
TEST(TorchManifest, CoversEveryPipelineAndOperation) {
  const std::vector<Case> cases = read_cases();
  auto some = [&](auto&& has) { return std::any_of(cases.begin(), cases.end(), has); };
  for (const CatalogEntry& entry : catalog()) {
    EXPECT_TRUE(some([&](const Case& c) { return c.file == entry.slug + ".npy"; })) << entry.slug;
  }
  for (const OperationInfo& info : vocabulary()) {
    EXPECT_TRUE(some([&](const Case& c) {
      return (" " + c.text + " ").find(" " + info.name + " ") != c.text.npos;
    })) << info.name;
  }
}

}  // namespace
}  // namespace upweave
