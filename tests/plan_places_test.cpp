// What a plan makes of what its target states: given weights, large values, and memory by lifetime.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "api/road.h"
#include "base/dtype.h"
#include "engine/reference/reference.h"
#include "plan/check.h"
#include "plan/explain.h"
#include "plan/lifetimes.h"
#include "plan/plan.h"
#include "random_network.h"
#include "random_pipeline.h"

namespace upweave {
namespace {

using Kind = Place::Kind;

std::multiset<std::string> laws_of(const FusedPlan& plan) {
  std::multiset<std::string> result;
  for (const Firing& firing : plan.firings) result.insert(firing.law);
  return result;
}

// --- What the target states --------------------------------------------------------------------------------

// Weights are centred where that is what runs, and only there: bfloat16 dot products take them as given.
TEST(Targets, GivenWeightsAreKeptWithTheirNorm) {
  const Shapes shapes = {{"input", {2, 32, 16, 16}}};
  for (const char* text :
       {"conv_transpose kernel 64 k3 s2 p1 | layer_norm channel | gelu",
        "conv_transpose kernel bias 64 k3 s2 p1 | layer_norm channel w b",
        "conv_transpose kernel 64 k3 s2 p1 | layer_norm channel | conv_transpose other 64 k3 "
        "| layer_norm channel"}) {
    Target target = engine_of(Engine::kCpu).target;
    const int norms = static_cast<int>(std::string(text).find("other") != std::string::npos) + 1;
    for (const bool wants : {false, true}) {
      target.wants_given_weights = [](const FusedPlan&, const Pass&, const Options&) { return true; };
      if (!wants) target.wants_given_weights = nullptr;
      const FusedPlan plan = lower_to_plan(parse_text(text), shapes, {.dtype = Dtype::kBF16}, target);
      const auto many = [&](Op op) {
        return std::ranges::count_if(plan.graph.nodes, [&](const Node& n) { return is(n, op); });
      };
      EXPECT_EQ(many(Op::kRmsNorm), wants ? 0 : norms) << text;
      EXPECT_EQ(many(Op::kLayerNorm), wants ? norms : 0) << text;
      EXPECT_EQ(many(Op::kCenter) == 0, wants) << text;
      EXPECT_EQ(laws_of(plan).count("center-weights"), static_cast<size_t>(wants ? 0 : norms)) << text;
    }
    const Options options = {.dtype = Dtype::kBF16};
    const auto plan = std::make_shared<const FusedPlan>(lower_to_plan(parse_text(text), shapes, options));
    const std::string said = fmt::format("{}", fmt::join(describe(plan, options), "\n"));
    EXPECT_EQ(said.find("bfloat16 dot") != said.npos,
              laws_of(*plan).count("center-weights") + 1 == size_t(norms))
        << said;
  }
}

// A 16-bit pipeline's value that is beyond the limit is computed again where its readers stay one sweep.
TEST(Targets, LargeValuesAreComputedAgain) {
  Target target = engine_of(Engine::kCpu).target;
  target.flops_per_byte = 0;  // by cost alone everything is stored
  target.limits = [](const Options&) { return Limits{.value = 1000}; };
  const auto plan_for = [&](const std::string& tail, Dtype dtype) {
    return lower_to_plan(parse_text("conv_transpose kernel 8 k3 s2 p1 | " + tail), {{"input", {2, 4, 9, 9}}},
                         {.dtype = dtype}, target);
  };
  for (const char* tail : {"instance_norm | gelu", "group_norm 2 | max space"}) {
    const FusedPlan plan = plan_for(tail, Dtype::kF16);
    ASSERT_EQ(plan.passes.size(), 2u) << tail;
    EXPECT_TRUE(plan.passes[0].writes.empty()) << tail;
    EXPECT_EQ(plan.passes[1].conv, plan.passes[0].conv) << tail;
    EXPECT_NE(plan.passes[0].why.find("computed again"), std::string::npos);
    EXPECT_EQ(plan_for(tail, Dtype::kF32).passes[1].conv, kNone) << "float32's wait in the output";
  }
  // Batch statistics, and a second reduction over space, which would take a third sweep.
  for (const char* tail : {"batch_norm", "instance_norm | gelu | softmax space"})
    EXPECT_EQ(plan_for(tail, Dtype::kF16).passes[1].conv, kNone) << tail;
}

// --- Memory by lifetime ------------------------------------------------------------------------------------

constexpr double kOfLeast = 1.1;

TEST(Lifetimes, LieApartAndClose) {
  std::mt19937_64 rng(testing::first_seed());
  for (int i = 0; i < 500; ++i) {
    std::vector<Lifetime> values;
    const int steps = 3 + static_cast<int>(rng() % 60);
    for (int step = 0; step < steps; ++step) {
      const int last = step + 1 + static_cast<int>(rng() % 4 == 0 ? rng() % 20 : rng() % 2);
      const auto bytes = static_cast<int64_t>(1 + rng() % (rng() % 3 == 0 ? 100000 : 30000));
      values.push_back({step, bytes, step, last});
      if (step > 0 && values[static_cast<size_t>(step) - 1].last == step && rng() % 2 == 0) {
        values.back().bytes = values[static_cast<size_t>(step) - 1].bytes;
        values.back().in_place_of = step - 1;
      }
    }
    const Offsets offsets = assign_offsets(values);
    int64_t least = 0;
    for (int step = 0; step < steps; ++step) {
      int64_t alive = 0;
      for (const Lifetime& v : values) {
        const bool ended = v.last == step && static_cast<size_t>(step) < values.size() &&
                           values[static_cast<size_t>(step)].in_place_of == v.value;
        if (v.first <= step && step <= v.last && !ended) alive += (v.bytes + 63) / 64 * 64;
      }
      least = std::max(least, alive);
    }
    EXPECT_EQ(offsets.least, least);
    EXPECT_LE(static_cast<double>(offsets.bytes), kOfLeast * static_cast<double>(least)) << i;
    for (size_t a = 0; a < values.size(); ++a) {
      EXPECT_EQ(offsets.at[a] % 64, 0);
      EXPECT_LE(offsets.at[a] + values[a].bytes, offsets.bytes);
      for (size_t b = 0; b < a; ++b) {
        const bool over = values[a].in_place_of == values[b].value;
        EXPECT_TRUE(!over || offsets.at[a] == offsets.at[b]);
        if (over || values[a].first > values[b].last) continue;
        EXPECT_TRUE(offsets.at[a] + values[a].bytes <= offsets.at[b] ||
                    offsets.at[b] + values[b].bytes <= offsets.at[a])
            << i;
      }
    }
  }
}

// What a network needs is the most that is alive at once, not the sum of what it computes.
TEST(Lifetimes, OfRandomNetworks) {
  for (int i = 0; i < testing::cases(200); ++i) {
    const uint64_t seed = testing::first_seed() + static_cast<uint64_t>(i);
    const std::string text = testing::random_chain(seed, 2 + i % 9, 8);
    for (const Engine engine : {Engine::kCpu, Engine::kCuda}) {
      const FusedPlan plan =
          lower_to_plan(parse_text(text), {{"input", {2, 8, 24, 24}}}, {.engine = engine, .threads = 1});
      const Workspace& w = plan.workspace;
      EXPECT_LE(static_cast<double>(w.values), kOfLeast * static_cast<double>(w.least) + 4096)
          << "UPWEAVE_SEED=" << seed << "\n"
          << text;
    }
  }
}

TEST(Lifetimes, OfALongChain) {
  std::string text = "conv_transpose kernel0 8 k3 p1";
  for (int i = 1; i < 30; ++i)
    text += fmt::format(" | instance_norm | gelu | conv_transpose kernel{} 8 k3 p1", i);
  const FusedPlan plan = lower_to_plan(parse_text(text), {{"input", {1, 8, 32, 32}}}, {});
  const int64_t one = 8 * 32 * 32 * 4;
  EXPECT_LE(plan.workspace.values, 2 * one + 4096) << "a value and what becomes of it, and statistics";
  EXPECT_NE(explain(plan, {}, {}).find("least possible"), std::string::npos);
}

// --- Sharing -----------------------------------------------------------------------------------------------

}  // namespace
}  // namespace upweave
