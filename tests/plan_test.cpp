// Plans: what must hold for every pipeline, and what the named ones come to, counted by hand.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

#include "api/road.h"
#include "base/dtype.h"
#include "engine/reference/reference.h"
#include "plan/check.h"
#include "plan/explain.h"
#include "plan/lifetimes.h"
#include "random_network.h"
#include "random_pipeline.h"

namespace upweave {
namespace {

using Kind = Place::Kind;

const CatalogEntry& entry(const std::string& part) {
  for (const CatalogEntry& e : catalog()) {
    if (e.slug.find(part) != e.slug.npos) return e;
  }
  throw invalid("no pipeline has '{}' in its name", part);
}

FusedPlan plan_of(const std::string& part, Engine engine = Engine::kCpu, Dtype dtype = Dtype::kF32) {
  const CatalogEntry& e = entry(part);
  return lower_to_plan(parse_text(e.text, e.settings), e.shapes, {.dtype = dtype, .engine = engine});
}

std::vector<std::string> stages(const FusedPlan& plan, size_t pass) {
  std::vector<std::string> result;
  for (const Id id : plan.passes[pass].nodes) result.emplace_back(plan.graph[id].op->name);
  return result;
}

std::multiset<std::string> laws_of(const FusedPlan& plan) {
  std::multiset<std::string> result;
  for (const Firing& firing : plan.firings) result.insert(firing.law);
  return result;
}

Id find_op(const FusedPlan& plan, Op op) {
  for (Id id = 0; id < plan.graph.size(); ++id) {
    if (is(plan.graph[id], op)) return id;
  }
  return kNone;
}

using Names = std::vector<std::string>;
using Laws = std::multiset<std::string>;

// --- What holds for every plan -----------------------------------------------------------------------------

// Beside what check(plan) wants of plans and lower_to_plan asks it for: what this planner does with them.
void check_plan(const FusedPlan& plan, Dtype dtype) {
  EXPECT_NO_THROW(check(plan));
  for (const Pass& pass : plan.passes) {
    EXPECT_FALSE(pass.writes.empty() && pass.reductions.empty()) << "a pass that leaves nothing behind";
    EXPECT_FALSE(pass.why.empty());
    EXPECT_GT(pass.bytes, 0);
  }
  const Pass& last = plan.passes.back();
  EXPECT_TRUE(std::ranges::find(last.nodes, plan.graph.output) != last.nodes.end());
  EXPECT_EQ(plan.places[plan.graph.output].kind, Kind::kOutput);
  int lent = 0;
  for (Id id = 0; id < plan.graph.size(); ++id) {
    EXPECT_EQ(plan.places[id].kind == Kind::kInput, is_input(plan.graph, id));
    EXPECT_EQ(plan.places[id].kind == Kind::kWeights, plan.weights[id]);
    if (plan.places[id].kind != Kind::kOutput || id == plan.graph.output) continue;
    ++lent;
    EXPECT_EQ(plan.places[id].halves, dtype != Dtype::kF32) << "16-bit elements would round twice";
    EXPECT_EQ(plan.graph[id].shape, plan.graph[plan.graph.output].shape);
  }
  EXPECT_LE(lent, 1);
}

void check_cost(const FusedPlan& plan) {
  double flop_sum = 0, byte_sum = 0;
  for (const Pass& pass : plan.passes) {
    flop_sum += pass.flops;
    byte_sum += pass.bytes;
  }
  EXPECT_DOUBLE_EQ(plan.cost.flops, flop_sum);
  EXPECT_DOUBLE_EQ(plan.cost.bytes, byte_sum);
  EXPECT_EQ(plan.cost.passes, static_cast<int>(plan.passes.size()));
}

// A target that never stores what it can compute again, one that always stores, both engines', and one pass
// an operation.
std::vector<Target> targets() {
  return {{.flops_per_byte = 1e9},
          {.flops_per_byte = 0},
          engine_of(Engine::kCpu).target,
          engine_of(Engine::kCuda).target,
          {.fuse = false}};
}

TEST(Plans, HoldTogetherForRandomPipelines) {
  for (int i = 0; i < testing::cases(2000); ++i) {
    const uint64_t seed = testing::first_seed() + static_cast<uint64_t>(i);
    const testing::RandomPipeline pipeline =
        testing::random_pipeline(seed, {.stages = 8, .convolutions = i % 3});
    for (const Target& target : targets()) {
      const Dtype dtype = i % 2 ? Dtype::kF32 : Dtype::kF16;
      SCOPED_TRACE(fmt::format("UPWEAVE_SEED={} flops_per_byte={} fuse={}\n{}", seed, target.flops_per_byte,
                               target.fuse, pipeline.text));
      FusedPlan plan;
      ASSERT_NO_THROW(
          plan = lower_to_plan(pipeline.graph, tensor_shapes(pipeline.graph), {.dtype = dtype}, target));
      check_plan(plan, dtype);
      check_cost(plan);
      if (::testing::Test::HasFailure()) {
        FAIL() << explain(plan, {}, {});
      }
      if (target.fuse) continue;
      for (const Pass& pass : plan.passes) EXPECT_EQ(pass.nodes.size(), 1u);
    }
  }
}

TEST(Plans, HoldTogetherForTheCatalog) {
  ASSERT_EQ(catalog().size(), 35u);
  for (const CatalogEntry& e : catalog()) {
    for (const Target& target : targets()) {
      SCOPED_TRACE(e.slug);
      const FusedPlan plan = lower_to_plan(parse_text(e.text, e.settings), e.shapes, {}, target);
      check_plan(plan, Dtype::kF32);
      check_cost(plan);
      EXPECT_FALSE(explain(plan, {}, {}).empty());
      if (!target.fuse) continue;
      EXPECT_LE(plan.passes.size(), 3u) << explain(plan, {}, {});
      EXPECT_LT(plan.cost.bytes, plan.cost.unfused_bytes);
    }
  }
}

TEST(Plans, TwoConvolutionsAndWholeSampleNormsGoOn) {
  const Shapes shapes = {{"input", {2, 3, 5, 6}}, {"k", {3, 3, 3, 3}}};
  for (const char* text :
       {"conv_transpose k | conv_transpose k", "conv_transpose k | batch_norm | conv_transpose k | gelu",
        "conv_transpose k | layer_norm last 2 | relu",
        "conv_transpose k | batch_norm as y | mean space as m | @y | sub @m"}) {
    for (const Target& target : targets()) {
      SCOPED_TRACE(text);
      const FusedPlan plan = lower_to_plan(parse_text(text), shapes, {}, target);
      check_plan(plan, Dtype::kF32);
    }
  }
}

// --- The five ----------------------------------------------------------------------------------------------

TEST(Five, SumLayerNormAvgPoolGelu) {
  const FusedPlan plan = plan_of("sum-layernorm-avgpool-gelu");
  EXPECT_EQ(laws_of(plan), (Laws{"drop-shift", "center-weights"}));
  EXPECT_EQ(find_op(plan, Op::kAdd), kNone) << "the addition is gone";
  ASSERT_EQ(plan.passes.size(), 1u);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "rms_norm", "avg_pool", "gelu"}));
  EXPECT_EQ(plan.workspace.values, 0);
  // Along an axis of I inputs, 3 taps each, one of which falls off the left border.
  const double conv = 2.0 * 32 * 32 * 64 * (3 * 16 - 1) * (3 * 32 - 1) * (3 * 32 - 1);
  const double in = 32.0 * 32 * 16 * 32 * 32, up = 32.0 * 64 * 32 * 64 * 64, out = up / 8,
               kernel = 32 * 64 * 27;
  EXPECT_EQ(flops(plan.source, find_op(plan, Op::kConvTranspose) - 1), conv);
  EXPECT_EQ(plan.cost.flops, conv + 8 * up + up + 20 * out);
  EXPECT_EQ(plan.cost.bytes, 4 * (in + kernel + out));
  EXPECT_EQ(plan.cost.unfused_flops, conv + up + 8 * up + up + 20 * out);
  EXPECT_EQ(plan.cost.unfused_bytes, 4 * ((in + kernel + up) + 2 * up + 2 * up + (up + out) + 2 * out));
  EXPECT_EQ(plan.cost.unfused_passes, 5);
}

TEST(Five, LayerNormGeluScaling) {
  const FusedPlan plan = plan_of("layernorm-gelu-scaling");
  EXPECT_EQ(laws_of(plan), (Laws{"drop-identity", "center-weights"}));
  ASSERT_EQ(plan.passes.size(), 1u);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "rms_norm", "gelu"}));
  // 4 taps an input, one falls off each border.
  const double conv = 2.0 * 32 * 32 * 64 * (4 * 16 - 2) * (4 * 32 - 2) * (4 * 32 - 2);
  const double in = 32.0 * 32 * 16 * 32 * 32, out = 32.0 * 64 * 32 * 64 * 64;
  EXPECT_EQ(plan.cost.flops, conv + (8 + 20) * out);
  EXPECT_EQ(plan.cost.bytes, 4 * (in + 32.0 * 64 * 64 + out));
}

TEST(Five, MaxMaxSum) {
  const FusedPlan plan = plan_of("3d-max-max-sum");
  EXPECT_EQ(laws_of(plan), (Laws{"split-bias", "merge-pools", "pool-before-monotone", "crop-outputs"}));
  ASSERT_EQ(plan.passes.size(), 1u);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "max_pool", "add", "sum"}));
  EXPECT_EQ(plan.graph[find_op(plan, Op::kConvTranspose)].shape, (Shape{16, 64, 60, 60, 60}))
      << "60^3 of 63^3";
  EXPECT_EQ(plan.graph[find_op(plan, Op::kMaxPool)].attrs.ints("window"), Shape{6});
  // o = 2i - 2 + k in [0, 60): 3 taps of input 0, all 5 of 1..28, 4 of 29, 2 of 30, none of 31.
  const double taps = 3 + 28 * 5 + 4 + 2;
  EXPECT_EQ(flops(plan.graph, find_op(plan, Op::kConvTranspose)), 2.0 * 16 * 32 * 64 * taps * taps * taps);
  EXPECT_EQ(plan.cost.bytes, 4 * (16.0 * 32 * 32 * 32 * 32 + 32 * 64 * 125 + 64 + 16 * 1000));
}

TEST(Five, AvgPoolClampSoftmaxMultiply) {
  FusedPlan plan = plan_of("avgpool-clamp-softmax-multiply");
  EXPECT_EQ(laws_of(plan), (Laws{"bounded-softmax"})) << "no pass for the maximum";
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(stages(plan, 0), (Names{"avg_pool", "conv_transpose", "clamp", "sub", "exp", "sum"}));
  EXPECT_EQ(stages(plan, 1), (Names{"div", "mul"}));
  const Id e = find_op(plan, Op::kExp), sum = find_op(plan, Op::kSum);
  EXPECT_EQ(plan.passes[0].reads, std::vector<Id>{0});
  EXPECT_EQ(plan.passes[0].writes, std::vector<Id>{e});
  EXPECT_EQ(plan.passes[0].reductions, std::vector<Id>{sum});
  EXPECT_EQ(plan.passes[1].reads, (std::vector<Id>{e, sum}));
  EXPECT_EQ(plan.places[e].kind, Kind::kOutput) << "float32: the exponentials wait in the output";
  EXPECT_EQ(plan.workspace.values, 32 * 64 * 4);

  // Float16 would round twice: a sample's channels are taken through both passes before the next.
  plan = plan_of("avgpool-clamp-softmax-multiply", Engine::kCpu, Dtype::kF16);
  const Place& exps = plan.places[find_op(plan, Op::kExp)];
  EXPECT_EQ(exps.kind, Kind::kWorkspace);
  EXPECT_EQ(exps.layout, Place::Layout::kPrepared);
  EXPECT_EQ(exps.dtype, Dtype::kF32);
  ASSERT_TRUE(plan.part.sliced());
  EXPECT_EQ(plan.part.all, 32);
  EXPECT_EQ(exps.bytes, int64_t{4} * 64 / plan.part.blocks * 32 * 64 * 64);

  // Where arithmetic is cheap against memory, the convolution is computed again.
  plan = plan_of("avgpool-clamp-softmax-multiply", Engine::kCuda);
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_TRUE(plan.passes[0].writes.empty());
  EXPECT_EQ(stages(plan, 1), (Names{"avg_pool", "conv_transpose", "clamp", "sub", "exp", "div", "mul"}));
}

TEST(Five, BatchNormTanhMaxPoolGroupNorm) {
  FusedPlan plan = plan_of("2d-batchnorm-tanh-maxpool-groupnorm");
  EXPECT_EQ(laws_of(plan),
            (Laws{"split-norm", "split-norm", "pool-before-monotone", "pool-before-monotone"}));
  ASSERT_EQ(plan.passes.size(), 2u);
  const Id pool = find_op(plan, Op::kMaxPool), moments = find_op(plan, Op::kMoments);
  EXPECT_EQ(plan.graph[plan.graph[pool].in[1]].name, "bn_weight")
      << "the pool takes the minimum where it is negative";
  EXPECT_EQ(std::set(plan.passes[0].nodes.begin(), plan.passes[0].nodes.end()),
            (std::set{find_op(plan, Op::kConvTranspose), pool, moments}));
  EXPECT_EQ(stages(plan, 1), (Names{"normalize", "tanh", "moments", "normalize"})) << "behind the pool";
  EXPECT_EQ(plan.passes[0].writes, std::vector<Id>{pool});
  EXPECT_EQ(plan.passes[0].reductions, std::vector<Id>{moments});
  EXPECT_EQ(plan.places[pool].kind, Kind::kOutput);
  EXPECT_EQ(plan.places[moments].kind, Kind::kKept);
  EXPECT_EQ(plan.places[moments].bytes, 2 * 128 * 8);
  // 5 taps an input, one falls off each border.
  const double conv = 2.0 * 512 * 64 * 128 * (5 * 32 - 2) * (5 * 32 - 2), up = 512.0 * 128 * 34 * 34,
               out = up / 4;
  EXPECT_EQ(plan.cost.flops, conv + up + 4 * up + 8 * out + 15 * out + 4 * out + 8 * out);

  plan = plan_of("2d-batchnorm-tanh-maxpool-groupnorm", Engine::kCpu, Dtype::kBF16);
  const Place& pooled = plan.places[find_op(plan, Op::kMaxPool)];
  EXPECT_EQ(pooled.kind, Kind::kOutput);
  EXPECT_TRUE(pooled.halves);
  EXPECT_EQ(pooled.bytes, plan.part.samples * 2 * 128 * 17 * 17) << "the lower halves";
}

// --- Chains of KernelBench ---------------------------------------------------------------------------------

TEST(Chains, 42And44NeedNoConvolution) {
  for (const char* name : {"kernelbench-42", "kernelbench-44"}) {
    const FusedPlan plan = plan_of(name);
    EXPECT_EQ(find_op(plan, Op::kConvTranspose), kNone) << name;
    EXPECT_EQ(plan.passes.size(), 1u) << name;
    EXPECT_TRUE(laws_of(plan).contains("mean-without-conv")) << name;
    EXPECT_LT(plan.cost.flops, plan.cost.unfused_flops / 1000) << name;
  }
  const FusedPlan plan = plan_of("kernelbench-44");
  EXPECT_EQ(stages(plan, 0), (Names{"mean_conv", "add", "mul"}));
  // The input is read once; kernel and bias beside it.
  EXPECT_EQ(plan.cost.bytes, 4 * (16.0 * 64 * 128 * 128 + 64 * 128 * 9 + 128 + 16 * 128));
}

TEST(Chains, 50HasAPooledKernel) {
  const FusedPlan plan = plan_of("kernelbench-50");
  ASSERT_EQ(plan.passes.size(), 1u);
  EXPECT_TRUE(laws_of(plan).contains("pool-kernel"));
  EXPECT_EQ(plan.graph[find_op(plan, Op::kPoolTaps)].shape, (Shape{3, 16, 2, 2, 2}))
      << "27 taps x 8 phases are 8 taps";
  EXPECT_EQ(find_op(plan, Op::kAvgPool), kNone);
  // Each of the 15 x 31 x 31 outputs meets 2 taps an axis.
  EXPECT_EQ(flops(plan.graph, find_op(plan, Op::kConvTranspose)), 2.0 * 128 * 3 * 16 * 30 * 62 * 62);
}

TEST(Chains, 72HasItsNormBehindTwoPoolsMadeOne) {
  const FusedPlan plan = plan_of("kernelbench-72");
  const Id pool = find_op(plan, Op::kAvgPool);
  EXPECT_EQ(plan.graph[pool].attrs.ints("window"), Shape{4});
  EXPECT_EQ(plan.graph[find_op(plan, Op::kNormalize)].in[0], pool);
  EXPECT_EQ(find_op(plan, Op::kAdd), kNone) << "the bias leaves with the mean";
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(plan.passes[0].writes, std::vector<Id>{pool});
  EXPECT_EQ(plan.places[pool].kind, Kind::kOutput);
  EXPECT_EQ(stages(plan, 1), Names{"normalize"});
}

// The batch's means and the samples' come from the same products, so that rounding cancels between them.
TEST(Chains, 77StoresNothing) {
  const FusedPlan plan = plan_of("kernelbench-77");
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "mean", "moments"}));
  EXPECT_TRUE(plan.passes[0].writes.empty());
  EXPECT_EQ(stages(plan, 1), Names{"normalize"});
  EXPECT_EQ(plan.graph[find_op(plan, Op::kNormalize)].attrs.real("eps"), 1e-5 / 4)
      << "the factor of 2 is in eps";
  EXPECT_EQ(plan.workspace.least, 16 * 128 * 4);
  EXPECT_EQ(plan.places[find_op(plan, Op::kMoments)].bytes, 2 * 128 * 8);
}

TEST(Chains, 15TakesItsMeanFromTheConvolution) {
  FusedPlan plan = plan_of("kernelbench-15");
  ASSERT_EQ(plan.passes.size(), 2u);
  const Id conv = find_op(plan, Op::kConvTranspose);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "moments", "mean"}));
  EXPECT_EQ(plan.passes[0].writes, std::vector<Id>{conv});
  EXPECT_EQ(plan.places[conv].kind, Kind::kOutput);
  EXPECT_TRUE(plan.passes[1].slab);
  // Computing again: no pass that leaves nothing behind.
  plan = plan_of("kernelbench-15", Engine::kCuda);
  ASSERT_EQ(plan.passes.size(), 2u);
  EXPECT_EQ(stages(plan, 0), (Names{"conv_transpose", "moments", "mean"}));
  EXPECT_EQ(stages(plan, 1), (Names{"conv_transpose", "normalize", "normalize", "sub"}));
}

// --- Several outputs ---------------------------------------------------------------------------------------

int convolutions(const FusedPlan& plan) {
  int n = 0;
  for (const Pass& pass : plan.passes) n += pass.conv != kNone;
  return n;
}

// A batch norm's statistics cost no convolution and no sweep: only themselves.
TEST(Outputs, StatisticsOfABatchNormAreItsOwn) {
  const Shapes shapes = {{"input", {512, 64, 32, 32}}, {"kernel", {64, 128, 5, 5}}};
  const std::string head = "conv_transpose kernel ",
                    tail = "batch_norm w b | tanh | max_pool 2 | group_norm 8";
  for (const char* const changed : {"p1 as c", "bias p1 as c", "bias p1 | add 3 as c", "p1 | mul 2 as c"}) {
    for (const Engine engine : {Engine::kCpu, Engine::kCuda}) {
      const auto plan = [&](const std::string& text) {
        return lower_to_plan(parse_text(text), shapes, {.engine = engine});
      };
      const FusedPlan with = plan(head + changed + " | moments batch out stats | @c | " + tail);
      const FusedPlan without = plan(head + changed + " | " + tail);
      EXPECT_EQ(convolutions(with), 1) << changed;
      EXPECT_EQ(with.passes.size(), without.passes.size()) << changed;
      EXPECT_LT(with.cost.flops, without.cost.flops * 1.0001) << changed;
      EXPECT_LT(with.cost.bytes, without.cost.bytes * 1.0001) << changed;
      const auto is_batch = [](const Node& n) {
        return is(n, Op::kMoments) && n.attrs.word("axes") == "batch";
      };
      EXPECT_EQ(std::ranges::count_if(with.graph.nodes, is_batch), 1) << print_text(with.graph);
      const Id stats = with.graph.extra_outputs[0].value;
      EXPECT_EQ(with.graph[stats].shape, (Shape{2, 128}));
      EXPECT_EQ(with.places[stats].kind, Kind::kExtraOutput);
    }
  }
}

// Nobody reads an output, and nobody's memory is written while another output still needs what is there.
TEST(Outputs, StandApart) {
  for (uint64_t seed = testing::first_seed(); seed < testing::first_seed() + 300; ++seed) {
    const testing::RandomPipeline pipeline = testing::random_pipeline(seed, {.elements = 3000});
    testing::Random rng(seed);
    const std::string text = testing::with_outputs(pipeline.graph, rng);
    const FusedPlan plan = lower_to_plan(parse_text(text), tensor_shapes(pipeline.graph), {}, Target());
    if (plan.graph.extra_outputs.empty()) continue;
    const auto readers = users(plan.graph);
    std::set<Id> written;
    for (const Pass& pass : plan.passes) {
      written.insert(pass.writes.begin(), pass.writes.end());
      written.insert(pass.reductions.begin(), pass.reductions.end());
    }
    const auto expect_apart = [&](Id id) {
      EXPECT_EQ(readers[id].size(), 1u) << text;
      EXPECT_TRUE(written.contains(id)) << text;
    };
    expect_apart(plan.graph.output);
    for (const Output& output : plan.graph.extra_outputs) expect_apart(output.value);
    const auto tensors = random_tensors(plan.source, rng);
    const auto wanted = evaluate_outputs(plan.source, tensors), made = evaluate_outputs(plan.graph, tensors);
    for (size_t k = 0; k < wanted.size(); ++k) {
      for (size_t i = 0; i < wanted[k].data.size(); ++i) {
        if (std::isnan(wanted[k].data[i]) && std::isnan(made[k].data[i])) continue;
        ASSERT_NEAR(made[k].data[i], wanted[k].data[i], 1e-9 * (1 + std::fabs(wanted[k].data[i])))
            << text << "\nbecame\n"
            << print_text(plan.graph) << "\nUPWEAVE_SEED=" << seed;
      }
    }
  }
}

TEST(Plans, AreSharedByThreads) {
  const CatalogEntry& e = entry("2d-batchnorm-tanh-maxpool-groupnorm");
  const Shapes shapes = {{"input", {2, 4, 5, 6}}, {"kernel", {4, 8, 5, 5}}};
  const FusedPlan plan = lower_to_plan(parse_text(e.text, e.settings), shapes, {}, Target());
  testing::Random rng(testing::first_seed());
  const auto tensors = random_tensors(plan.source, rng);
  const std::string text = explain(plan, {}, {}), json = explain_json(plan, {}, {});
  const std::vector<double> values = evaluate(plan.graph, tensors).data;
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < 20; ++n) {
        right[t] += explain(plan, {}, {}) == text && explain_json(plan, {}, {}) == json &&
                    evaluate(plan.graph, tensors).data == values &&
                    parse_text(print_text(plan.graph)).size() > 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 20));
}

TEST(Explain, TellsThePersonWhatHappened) {
  const std::string text = explain(plan_of("3d-max-max-sum"), {}, {"direct, 6 x 64 tiles"});
  for (const char* part : {"60x60x60 of 63x63x63 outputs lie in whole windows",
                           "pool_m(pool_n(x)) = pool_mn(x)", "Laws that fired", "As written", "Rewritten",
                           "Passes over memory", "248.802 GFLOP", "direct, 6 x 64 tiles"}) {
    EXPECT_NE(text.find(part), text.npos) << part << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace upweave
