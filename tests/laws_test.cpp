// Every law: that it fires and what it makes, that it does not fire where a clause of its condition fails,
// and that the reference gives the same values before and after, NaN and infinities included.
#include <gtest/gtest.h>

#include <set>

#include "conv_law_cases.h"
#include "engine/reference/reference.h"
#include "random_pipeline.h"
#include "rewrite/rewrite.h"

namespace upweave {
namespace {

using testing::Fill;
using testing::Random;
using namespace law_cases;

std::vector<Case> all(std::vector<Case> cases, const std::vector<Case>& more) {
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}
const std::vector<Case>& all_firing() {
  static const std::vector<Case> cases = all(firing_cases(), conv_firing_cases());
  return cases;
}
const std::vector<Case>& all_refusing() {
  static const std::vector<Case> cases = all(refusing_cases(), conv_refusing_cases());
  return cases;
}

class Firing : public ::testing::TestWithParam<Case> {};
class Refusing : public ::testing::TestWithParam<Case> {};

TEST_P(Firing, MakesWhatItSays) {
  const Graph graph = graph_of(GetParam());
  const auto rewritten = apply_once(graph, GetParam().law);
  ASSERT_TRUE(rewritten.has_value());
  EXPECT_EQ(print_text(rewritten->graph), GetParam().expected);
  EXPECT_EQ(rewritten->graph[rewritten->graph.output].shape, graph[graph.output].shape);
  ASSERT_EQ(rewritten->firings.size(), 1u);
  EXPECT_FALSE(rewritten->firings[0].why.empty());
  EXPECT_FALSE(rewritten->firings[0].where.empty());
}

TEST_P(Refusing, NeedsItsWholeCondition) {
  const Graph graph = graph_of(GetParam());
  const auto rewritten = apply_once(graph, GetParam().law);
  EXPECT_FALSE(rewritten.has_value()) << "without: " << GetParam().clause << "\n"
                                      << print_text(rewritten->graph);
}

// What a law's comment documents: with such data, a NaN of the pipeline as written may come out as another
// value.
bool nan_may_go(std::string_view law, Fill fill) {
  static const std::set<std::pair<std::string_view, Fill>> documented = {
      {"drop-shift", Fill::kNanParams},             // a shift of NaN or infinity
      {"drop-shift", Fill::kInfParams},             //
      {"drop-shift", Fill::kInfTerms},              //
      {"pool-before-monotone", Fill::kInfTerms},    // likewise
      {"mean-without-conv", Fill::kInfTerms},       //
      {"adjust-moments", Fill::kNanParams},         // the variance beside a shift of NaN or infinity
      {"adjust-moments", Fill::kInfParams},         //
      {"adjust-moments", Fill::kInfTerms},          //
      {"pool-before-monotone", Fill::kInfParams},   // 0 * inf, inf - inf in an element that is not picked
      {"average-before-linear", Fill::kInfParams},  // an infinite factor
      {"pool-kernel", Fill::kInfInput},             // an infinity under taps of both signs
      {"mean-without-conv", Fill::kInfParams},      // an infinite tap
      {"upsample-conv", Fill::kInfInput},           // an infinity under taps of both signs
      {"pad-into-conv", Fill::kNanParams},          // a tap that met zeros
      {"pad-into-conv", Fill::kInfParams},          //
      {"pad-into-conv", Fill::kInfTerms},           //
      {"join-convs", Fill::kInfInput},              // infinities of both signs between the two
      {"join-convs", Fill::kInfParams},             //
      {"join-convs", Fill::kNanParams},             // a factor of outputs that no tap reaches
      {"join-convs", Fill::kInfTerms},              //
      {"given-norm", Fill::kInfParams},             // statistics that are infinite
      {"given-norm", Fill::kInfTerms},              //
      {"scale-into-weights", Fill::kNanParams},     // a factor of outputs that no tap reaches
      {"scale-into-weights", Fill::kInfParams},     //
      {"scale-into-weights", Fill::kInfTerms},      //
  };
  return documented.contains({law, fill});
}

// The laws under which a NaN may come: an infinite factor meets each tap, not their sum.
bool nan_may_come(std::string_view law, Fill fill) {
  const bool infinite = fill == Fill::kInfParams || fill == Fill::kInfTerms;
  return (law == "scale-into-weights" || law == "join-convs" || law == "given-norm") && infinite;
}

// How the reference itself rounds. Bounds allow a long sum 16 units, for engines combine partial sums in a
// wider type; the reference adds its n < 4096 terms one by one and may be off by n units: a factor of 256.
constexpr Rounding kFloat64 = {.unit = 0x1p-45, .product = 0x1p-45, .largest = 0x1.fffffffffffffp1023};

// Values and bounds of the pipeline as written against the rewritten values. Where an infinity upstream
// leaves a finite value without a bound (inf * unit is no distance), 1e-9 of its size stands in.
::testing::AssertionResult agree(const Tensor& written, const Tensor& rewritten, bool nan_goes,
                                 bool nan_comes = false) {
  if (written.shape != rewritten.shape) return ::testing::AssertionFailure() << to_string(rewritten.shape);
  for (size_t i = 0; i < written.data.size(); ++i) {
    const double a = written.data[i], b = rewritten.data[i];
    const double bound = std::isfinite(written.err[i]) ? written.err[i] : 1e-9 * (1 + std::fabs(a));
    if (std::isnan(a)
            ? std::isnan(b) || nan_goes
            : a == b || (nan_comes && std::isnan(b)) || (std::isfinite(a) && std::fabs(a - b) <= bound)) {
      continue;
    }
    return ::testing::AssertionFailure() << fmt::format("[{}] was {} and is {}, bound {}", i, a, b, bound);
  }
  return ::testing::AssertionSuccess();
}

// The same of all outputs.
::testing::AssertionResult agree(const std::vector<Tensor>& written, const std::vector<Tensor>& rewritten,
                                 bool nan_goes, bool nan_comes = false) {
  for (size_t k = 0; k < written.size(); ++k) {
    if (auto same = agree(written[k], rewritten[k], nan_goes, nan_comes); !same)
      return same << " in output " << k;
  }
  return ::testing::AssertionSuccess();
}

// A random pipeline, every other time with more outputs.
Graph random_graph(uint64_t seed, const testing::Limits& limits) {
  const testing::RandomPipeline pipeline = testing::random_pipeline(seed, limits);
  Random rng(seed);
  if (seed % 2) return pipeline.graph;
  return infer(parse_text(testing::with_outputs(pipeline.graph, rng)), tensor_shapes(pipeline.graph));
}

constexpr Fill kFills[] = {Fill::kFinite,    Fill::kNanInput,  Fill::kInfInput,
                           Fill::kNanParams, Fill::kInfParams, Fill::kInfTerms};

TEST_P(Firing, KeepsValues) {
  const Graph graph = graph_of(GetParam());
  const auto rewritten = apply_once(graph, GetParam().law);
  ASSERT_TRUE(rewritten.has_value());
  for (const Fill fill : kFills) {
    for (int n = 0; n < testing::cases(40); ++n) {
      const uint64_t seed = testing::first_seed() + static_cast<uint64_t>(n);
      Random rng(seed);
      const auto tensors = random_tensors(graph, rng, fill);
      // Pieces that only rewrites make have no bound of their own: values of order 1, a few hundred units.
      Tensor written;
      try {
        written = evaluate(graph, tensors, &kFloat64);
      } catch (const Error&) {
        written = evaluate(graph, tensors);
        written.err.assign(written.data.size(), 0x1p-46);
      }
      EXPECT_TRUE(agree(written, evaluate(rewritten->graph, tensors), nan_may_go(GetParam().law, fill),
                        nan_may_come(GetParam().law, fill)))
          << "UPWEAVE_SEED=" << seed << " fill " << static_cast<int>(fill);
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}", info.param.law, info.index);
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Law, Firing, ::testing::ValuesIn(all_firing()), case_name);
INSTANTIATE_TEST_SUITE_P(Law, Refusing, ::testing::ValuesIn(all_refusing()), case_name);

TEST(Laws, EachHasCasesBothWays) {
  std::set<std::string> fires, refuses;
  for (const Case& c : all_firing()) fires.insert(c.law);
  for (const Case& c : all_refusing()) refuses.insert(c.law);
  for (const Law& law : laws()) {
    EXPECT_TRUE(fires.contains(std::string(law.name))) << law.name;
    EXPECT_TRUE(refuses.contains(std::string(law.name))) << law.name;
  }
}

// The infinities that `nan_may_go` excuses are told to whoever asks `explain`.
TEST(Laws, SayWhereNanMayGo) {
  for (const auto& [law, text] : std::vector<std::pair<std::string, std::string>>{
           {"drop-shift", "add t | batch_norm"},
           {"pool-before-monotone", "mul t | max_pool 2"},
           {"average-before-linear", "mul t | avg_pool 2"},
           {"pool-kernel", "conv_transpose kernel s2 | avg_pool 2"},
           {"adjust-moments", "add t | moments batch"},
           {"mean-without-conv", "conv_transpose kernel | mean space"},
           {"upsample-conv", "upsample 2 nearest | conv_transpose kernel"},
           {"scale-into-weights", "conv_transpose kernel | mul t"}}) {
    const auto rewritten = apply_once(graph_of({law, text, ""}), law);
    ASSERT_TRUE(rewritten.has_value()) << law;
    EXPECT_NE(rewritten->firings[0].why.find("inf"), std::string::npos) << rewritten->firings[0].why;
  }
}

// A scale whose square vanishes in float64 leaves an eps of 0 as it is.
TEST(Laws, TakeATinyScaleOutOfANormWithoutEps) {
  const auto rewritten = apply_once(graph_of({"", "mul 1e-200 | instance_norm eps=0", ""}), "drop-scale");
  ASSERT_TRUE(rewritten.has_value());
  EXPECT_EQ(print_text(rewritten->graph), "instance_norm eps=0");
}

// Laws in random order: every step must keep the values of what was written.
void step_through(const Graph& source, uint64_t seed, std::map<std::string_view, int>& fired) {
  Random rng(seed);
  const Fill fill =
      rng.pick({Fill::kFinite, Fill::kNanInput, Fill::kInfInput, Fill::kNanParams, Fill::kInfTerms});
  const auto tensors = random_tensors(source, rng, fill);
  const std::vector<Tensor> written = evaluate_outputs(source, tensors, &kFloat64);
  Graph graph = source;
  bool nan_goes = false, nan_comes = false;
  for (int step = 0;; ++step) {
    ASSERT_LT(step, 100) << "UPWEAVE_SEED=" << seed << ": no fixed point\n" << print_text(graph);
    std::vector<std::pair<std::string_view, Graph>> next;
    for (const Law& law : laws()) {
      if (auto rewritten = apply_once(graph, law.name))
        next.emplace_back(law.name, std::move(rewritten->graph));
    }
    if (next.empty()) return;
    auto& [law, after] = next[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(next.size()) - 1))];
    ++fired[law];
    // An infinity can reach a law as anyone's input or parameter.
    const bool inf = fill == Fill::kInfInput || fill == Fill::kInfTerms;
    nan_goes = nan_goes || nan_may_go(law, fill) ||
               (inf && (nan_may_go(law, Fill::kInfInput) || nan_may_go(law, Fill::kInfParams)));
    // Nor is it known which of two values is an exact 0 where it meets an infinity, and which 1e-17: each law
    // has cases of its own that are strict.
    nan_comes = nan_comes || nan_may_come(law, fill) || inf;
    ASSERT_TRUE(agree(written, evaluate_outputs(after, tensors), nan_goes, nan_comes))
        << "UPWEAVE_SEED=" << seed << " fill " << static_cast<int>(fill) << "\n"
        << print_text(source) << "\n"
        << law << " made of\n"
        << print_text(graph) << "\nthis\n"
        << print_text(after);
    const std::string text = print_text(after);
    ASSERT_EQ(print_text(parse_text(text)), text) << "UPWEAVE_SEED=" << seed;
    graph = std::move(after);
  }
}

// Of `cases`, each law that they can meet fired often enough to be tested.
void expect_often(const std::map<std::string_view, int>& fired, const std::vector<Case>& cases, int times) {
  for (const Case& c : cases) {
    const auto it = fired.find(c.law);
    EXPECT_GT(it == fired.end() ? 0 : it->second, times) << c.law << " is hardly tested";
  }
}

TEST(RandomPipelines, KeepTheirValuesUnderEveryLaw) {
  std::map<std::string_view, int> fired;
  const int n = testing::cases(3000);
  for (int i = 0; i < n && !HasFatalFailure(); ++i) {
    const uint64_t seed = testing::first_seed() + static_cast<uint64_t>(i);
    step_through(random_graph(seed, {.elements = 3000}), seed, fired);
  }
  if (n >= 3000) expect_often(fired, firing_cases(), 30);
}

TEST(RandomConvolutions, KeepTheirValuesUnderEveryLaw) {
  std::map<std::string_view, int> fired;
  const int n = testing::cases(1500);
  for (int i = 0; i < n && !HasFatalFailure(); ++i) {
    const uint64_t seed = testing::first_seed() + 500000 + static_cast<uint64_t>(i);
    Random rng(seed);
    const auto [text, shapes] = random_convolutions(rng);
    step_through(infer(parse_text(text), shapes), seed, fired);
  }
  if (n >= 1500) expect_often(fired, conv_firing_cases(), 15);
}

// The order that rewrite() takes gives the same values too, and is a fixed point.
TEST(RandomPipelines, KeepTheirValuesWhenRewritten) {
  for (int i = 0; i < testing::cases(1000); ++i) {
    const uint64_t seed = testing::first_seed() + 100000 + static_cast<uint64_t>(i);
    const Graph source = random_graph(seed, {.stages = 9, .elements = 3000, .convolutions = 2});
    Random rng(seed);
    const auto tensors = random_tensors(source, rng);
    const Rewritten rewritten = rewrite(source);
    ASSERT_TRUE(agree(evaluate_outputs(source, tensors, &kFloat64),
                      evaluate_outputs(rewritten.graph, tensors), false))
        << "UPWEAVE_SEED=" << seed << "\n"
        << print_text(source) << "\nbecame\n"
        << print_text(rewritten.graph);
    EXPECT_TRUE(rewrite(rewritten.graph).firings.empty()) << "UPWEAVE_SEED=" << seed;
  }
}

}  // namespace
}  // namespace upweave
