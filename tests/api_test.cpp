// What a C++ user may rely on.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "api/plan_cache.h"
#include "base/dtype.h"
#include "graph/graph.h"
#include "upweave/upweave.hpp"

#ifdef __SANITIZE_ADDRESS__  // memory that cannot be had is a null pointer there, too
extern "C" UPWEAVE_PUBLIC const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace upweave {
namespace {

const Options kReference = {.engine = Engine::kReference};

std::vector<float> wave(int64_t n, float phase) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(phase + 1.7f * static_cast<float>(i));
  return values;
}

// The sentence of the error that f throws, "" if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

#define EXPECT_SAYS(statement, words) \
  EXPECT_NE(error_of([&] { statement; }).find(words), std::string::npos) << error_of([&] { statement; })

struct Example {
  Pipeline pipeline = Pipeline::parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu | mul scale");
  Plan plan = pipeline.compile({{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 3, 2}}}, kReference);
  std::vector<float> x = wave(2 * 3 * 4 * 5, 0), k = wave(3 * 6 * 3 * 2, 1), s = wave(6, 2);
  std::vector<float> y = std::vector<float>(static_cast<size_t>(count(plan.output_shape())), -777.0f);
  Tensors tensors = {{"input", x.data()}, {"kernel", k.data()}, {"scale", s.data()}};
  bool untouched() const {
    return std::all_of(y.begin(), y.end(), [](float v) { return v == -777.0f; });
  }
};

TEST(Pipeline, TextIsAFixedPoint) {
  for (const CatalogEntry& entry : catalog()) {
    const Pipeline pipeline = Pipeline::named(entry.slug);
    EXPECT_EQ(Pipeline::parse(pipeline.text()).text(), pipeline.text()) << entry.slug;
  }
}

TEST(Pipeline, BuilderWritesText) {
  const Builder builder = Builder()
                              .avg_pool({2})
                              .conv_transpose("kernel", {.bias = "b",
                                                         .stride = {2, 1},
                                                         .padding = {1},
                                                         .output_padding = {1, 0},
                                                         .dilation = {1, 2},
                                                         .groups = 2})
                              .as("c")
                              .clamp(-0.5, 1)
                              .batch_norm("bw", "bb")
                              .tanh()
                              .max_pool({2, 1})
                              .group_norm(2, "gw", "gb")
                              .stage("leaky_relu 0.2")
                              .add(0.1)
                              .mul("m")
                              .softmax("channel")
                              .layer_norm("channel")
                              .relu()
                              .sigmoid()
                              .gelu()
                              .mean("space");
  EXPECT_EQ(builder.text(),
            "avg_pool 2 | conv_transpose kernel b s2x1 p1 op1x0 d1x2 g2 as c | clamp -0.5 1 | batch_norm bw "
            "bb | tanh"
            " | max_pool 2x1 | group_norm 2 gw gb | leaky_relu 0.2 | add 0.1 | mul m | softmax channel"
            " | layer_norm channel | relu | sigmoid | gelu | mean space");
  EXPECT_NO_THROW(builder.build());
  const Pipeline residual =
      Builder().conv_transpose("k").as("c").relu().add("@c").take("c").sum("channel").build();
  EXPECT_EQ(residual.parameters(), std::vector<std::string>{"k"});
}

TEST(Pipeline, ParametersAreInOrderOfFirstUse) {
  EXPECT_EQ(Pipeline::parse("conv_transpose z y | mul x | add z:full").parameters(),
            (std::vector<std::string>{"z", "y", "x"}));
}

TEST(Settings, OneNumberIsAllAxesAndAnAxisCanBeNamed) {
  const std::string slug = "conv-transpose3d-layernorm-gelu-scaling";
  const auto text = [&](const Settings& settings) { return Pipeline::named(slug, settings).text(); };
  EXPECT_EQ(text({{"stride", "3"}}), text({{"stride", "3x3x3"}}));
  EXPECT_EQ(text({{"stride", "3,1,2"}}), text({{"stride", "3x1x2"}}));
  EXPECT_EQ(text({{"stride_h", "1"}}), text({{"stride", "2x1x2"}}));
  EXPECT_EQ(text({{"stride_d", "4"}, {"stride", "3"}}), text({{"stride", "4x3x3"}}));
  EXPECT_EQ(Pipeline::parse("conv_transpose k s$s", {{"s", "2"}}).text(),
            Pipeline::parse("conv_transpose k s2").text());
}

TEST(Settings, MistakesAreNamed) {
  const std::string slug = "conv-transpose3d-layernorm-gelu-scaling";
  EXPECT_SAYS(Pipeline::named(slug, {{"strid", "2"}}), "'strid'");
  EXPECT_SAYS(Pipeline::named(slug, {{"stride", "1 | relu"}}), "stride is '1 | relu'");
  EXPECT_SAYS(Pipeline::named(slug, {{"stride", ""}}), "stride");
  EXPECT_SAYS(Pipeline::named("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", {{"stride_d", "2"}}),
              "stride_d");
  EXPECT_SAYS(Pipeline::named("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", {{"groups", "0"}}),
              "groups is 0");
  EXPECT_SAYS(Pipeline::named("no-such-thing"), "no-such-thing");
  EXPECT_SAYS(Pipeline::parse("conv_transpose k s$stride"), "stride");
  EXPECT_SAYS(Pipeline::parse("relu", {{"stride", "2"}}), "'stride'");
  EXPECT_SAYS(Pipeline::parse("conv_transpose k s$stride", {{"strid", "2"}}),
              "'strid' is none of the pipeline's: stride");
}

TEST(Catalog, HasTheFiveAndThirtyChains) {
  size_t five = 0;
  for (const CatalogEntry& entry : catalog()) {
    five += entry.slug.starts_with("conv-transpose");
    EXPECT_FALSE(entry.title.empty()) << entry.slug;
    Shapes shapes = entry.shapes;
    shapes.at("input")[0] = 1;
    EXPECT_NO_THROW(Pipeline::named(entry.slug).compile(shapes, kReference)) << entry.slug;
  }
  EXPECT_EQ(five, 5u);
  EXPECT_EQ(catalog().size(), 35u);
  int last = 0;  // KernelBench's numbers rise
  for (const CatalogEntry& entry : catalog()) {
    if (!entry.slug.starts_with("kernelbench-")) continue;
    const int number = std::stoi(entry.slug.substr(std::strlen("kernelbench-")));
    EXPECT_GT(number, last);
    last = number;
  }
  EXPECT_EQ(last, 100);
}

TEST(Vocabulary, EveryExampleIsAText) {
  EXPECT_GT(vocabulary().size(), 30u);
  for (const OperationInfo& op : vocabulary()) {
    EXPECT_FALSE(op.summary.empty()) << op.name;
    EXPECT_NO_THROW(Pipeline::parse(op.example)) << op.example;
  }
}

TEST(Plan, KnowsItsShapes) {
  const Example e;
  EXPECT_EQ(e.plan.output_shape(), (Shape{2, 6, 7, 8}));
  EXPECT_EQ(e.plan.tensor_shapes(),
            (Shapes{{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 3, 2}}, {"scale", {6}}}));
  EXPECT_GT(e.plan.cost().unfused_passes, e.plan.cost().passes);
  EXPECT_NE(e.plan.explain().find("layer_norm"), std::string::npos);
}

TEST(Plan, EveryWayToRunGivesTheSameBits) {
  Example e;
  e.plan.run(e.tensors, e.y.data());
  EXPECT_FALSE(e.untouched());
  const std::vector<float> expected = e.y;

  void* workspace = std::aligned_alloc(64, (e.plan.workspace_bytes() + 127) / 64 * 64);
  std::fill(e.y.begin(), e.y.end(), 0.0f);
  e.plan.run(e.tensors, e.y.data(), workspace);
  EXPECT_EQ(e.y, expected);

  const Weights weights = e.plan.pack({{"kernel", e.k.data()}, {"scale", e.s.data()}});
  const Plan copy = e.plan;
  std::fill(e.k.begin(), e.k.end(), 0.0f);  // the weights are packed: this changes nothing
  std::fill(e.y.begin(), e.y.end(), 0.0f);
  copy.run(weights, e.x.data(), e.y.data());
  EXPECT_EQ(e.y, expected);
  std::fill(e.y.begin(), e.y.end(), 0.0f);
  copy.run(weights, e.x.data(), e.y.data(), workspace);
  EXPECT_EQ(e.y, expected);
  std::free(workspace);
}

TEST(Plan, ManyThreadsMayRunOneAtOnce) {
  const Example e;
  std::vector<std::vector<float>> results(8, e.y);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) e.plan.run(e.tensors, result.data());
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0);
  EXPECT_NE(results[0][0], -777.0f);
}

TEST(Plan, WeightsMayOutliveIt) {
  Example e;
  std::optional<Plan> plan = e.plan;
  const Weights weights = plan->pack({{"kernel", e.k.data()}, {"scale", e.s.data()}});
  plan.reset();
  EXPECT_NO_THROW(e.plan.run(weights, e.x.data(), e.y.data()));
}

TEST(Plan, ElementTypesRoundOnce) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF64}) {
    const Plan plan = Pipeline::parse("mul 3").compile({{"input", {1, 1, 4}}},
                                                       {.dtype = dtype, .engine = Engine::kReference});
    std::vector<std::byte> x(4 * 8), y(4 * 8);
    const double values[] = {0.1, -2.5, 1000, 1e-3};
    for (int64_t i = 0; i < 4; ++i) store_element(x.data(), dtype, i, values[i]);
    plan.run({{"input", x.data()}}, y.data());
    for (int64_t i = 0; i < 4; ++i) {
      const double exact = 3 * load_element(x.data(), dtype, i);
      EXPECT_LE(std::fabs(load_element(y.data(), dtype, i) - exact), roundoff(dtype) * std::fabs(exact));
    }
  }
}

TEST(Plan, RefusesWrongTensors) {
  Example e;
  float* y = e.y.data();
  const auto without = [&](const char* name) {
    Tensors tensors = e.tensors;
    tensors.erase(name);
    return tensors;
  };
  const auto with = [&](const char* name, const void* data) {
    Tensors tensors = e.tensors;
    tensors[name] = data;
    return tensors;
  };
  EXPECT_SAYS(e.plan.run(without("kernel"), y), "'kernel' is missing");
  EXPECT_SAYS(e.plan.run(without("input"), y), "'input' is missing");
  EXPECT_SAYS(e.plan.run(with("kernl", e.k.data()), y), "'kernl'");
  EXPECT_SAYS(e.plan.run(with("scale", nullptr), y), "scale is a null pointer, but its shape is 6");
  EXPECT_SAYS(e.plan.run(with("scale", reinterpret_cast<char*>(e.s.data()) + 1), y), "scale points to");
  EXPECT_SAYS(e.plan.run(with("input", y + 3), y), "output overlaps input");
  EXPECT_SAYS(e.plan.run(e.tensors, nullptr), "output is a null pointer");
  EXPECT_SAYS(e.plan.run(e.tensors, reinterpret_cast<char*>(y) + 2), "output points to");
  EXPECT_SAYS(e.plan.run(e.tensors, y, reinterpret_cast<void*>(65)), "workspace");
  EXPECT_SAYS(e.plan.pack({{"kernel", e.k.data()}}), "'scale' is missing");
  EXPECT_SAYS(e.plan.pack(e.tensors), "'input'");
  const Weights weights = Example().plan.pack({{"kernel", e.k.data()}, {"scale", e.s.data()}});
  EXPECT_SAYS(e.plan.run(weights, e.x.data(), y), "another plan");
  EXPECT_TRUE(e.untouched());
}

TEST(Plan, ReadsSeveralInputs) {
  const auto pipeline = Pipeline::parse("input x skip | conv_transpose kernel s2 p1 | add @skip | relu");
  EXPECT_EQ(Builder()
                .stage("input x skip")
                .conv_transpose("kernel", {.stride = {2}, .padding = {1}})
                .stage("add @skip")
                .relu()
                .build()
                .text(),
            pipeline.text());
  EXPECT_EQ(pipeline.inputs(), (std::vector<std::string>{"x", "skip"}));
  EXPECT_EQ(pipeline.parameters(), std::vector<std::string>{"kernel"});
  const Shapes shapes = {{"x", {2, 3, 4, 5}}, {"skip", {2, 6, 8, 10}}, {"kernel", {3, 6, 4, 4}}};
  const std::vector<float> x = wave(2 * 3 * 4 * 5, 0), s = wave(2 * 6 * 8 * 10, 1), k = wave(3 * 6 * 16, 2);
  const Tensors all = {{"x", x.data()}, {"skip", s.data()}, {"kernel", k.data()}};
  const Tensors inputs = {{"x", x.data()}, {"skip", s.data()}};
  for (const Engine engine : {Engine::kReference, Engine::kCpu}) {
    const Plan plan = pipeline.compile(shapes, {.engine = engine});
    EXPECT_EQ(plan.inputs(), pipeline.inputs());
    EXPECT_EQ(plan.tensor_shapes(), shapes);
    std::vector<float> whole(s.size(), -777), packed = whole;
    plan.run(all, whole.data());
    const Weights weights = plan.pack({{"kernel", k.data()}});
    EXPECT_SAYS(plan.pack(all), "tensor 'skip' is none of the pipeline's: kernel");
    EXPECT_SAYS(plan.run(weights, x.data(), packed.data()),
                "one input is given, but the pipeline has 2: x, skip");
    EXPECT_SAYS(plan.run(weights, {{"x", x.data()}}, packed.data()), "tensor 'skip' is missing");
    EXPECT_SAYS(plan.run(weights, all, packed.data()), "tensor 'kernel' is none of the pipeline's inputs");
    EXPECT_SAYS(plan.run(inputs, packed.data()),
                "tensor 'kernel' is missing; the pipeline reads kernel, skip, x");
    EXPECT_SAYS(plan.run(weights, {{"x", x.data()}, {"skip", packed.data()}}, packed.data()),
                "output overlaps skip");
    EXPECT_EQ(packed[0], -777);
    plan.run(weights, inputs, packed.data());
    EXPECT_EQ(whole, packed);
    EXPECT_NE(plan.explain().find("skip"), std::string::npos);
  }
}

TEST(Plan, GivesOutMoreThanItsResult) {
  const auto pipeline = Pipeline::parse(
      "conv_transpose kernel bias s2 p1 as c | moments batch out stats | @c | batch_norm | relu out y | mean "
      "space");
  EXPECT_EQ(Builder()
                .stage("conv_transpose kernel bias s2 p1")
                .as("c")
                .stage("moments batch")
                .out("stats")
                .take("c")
                .stage("batch_norm")
                .relu()
                .out("y")
                .mean("space")
                .build()
                .text(),
            pipeline.text());
  const std::vector<float> x = wave(2 * 3 * 4 * 5, 0), k = wave(3 * 6 * 4 * 4, 1), b = wave(6, 2);
  const Tensors tensors = {{"input", x.data()}, {"kernel", k.data()}, {"bias", b.data()}};
  std::vector<std::vector<float>> results[2];
  for (const Engine engine : {Engine::kCpu, Engine::kReference}) {
    const Plan plan =
        pipeline.compile({{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 4, 4}}}, {.engine = engine});
    ASSERT_EQ(plan.extra_outputs().size(), 2u);
    EXPECT_EQ(plan.extra_outputs()[0].name, "stats");
    EXPECT_EQ(plan.extra_outputs()[0].shape, (Shape{2, 6}));
    EXPECT_EQ(plan.extra_outputs()[1].shape, (Shape{2, 6, 8, 10}));
    std::vector<float> mean(12, NAN), stats(12, NAN), y(960, NAN), again(12, NAN);
    const Outputs extra = {{"stats", stats.data()}, {"y", y.data()}};
    plan.run(tensors, mean.data(), extra);
    results[engine == Engine::kCpu] = {mean, stats, y};
    plan.run(plan.pack({{"kernel", k.data()}, {"bias", b.data()}}), x.data(), again.data(), extra);
    EXPECT_EQ(again, mean);
    EXPECT_SAYS(plan.run(tensors, mean.data()), "output 'stats' is missing");
    EXPECT_SAYS(plan.run(tensors, mean.data(), {{"stats", stats.data()}, {"y", nullptr}}),
                "y is a null pointer");
    EXPECT_SAYS(plan.run(tensors, mean.data(), {{"stats", stats.data()}, {"y", y.data()}, {"z", y.data()}}),
                "'z' is none");
    EXPECT_SAYS(plan.run(tensors, mean.data(), {{"stats", y.data() + 7}, {"y", y.data()}}),
                "y overlaps stats");
    EXPECT_SAYS(plan.run(tensors, mean.data(), {{"stats", mean.data() + 2}, {"y", y.data()}}),
                "stats overlaps output");
    EXPECT_NE(plan.explain().find("stats 2x6"), std::string::npos);
    EXPECT_NE(plan.explain_json().find("\"stats\""), std::string::npos);
  }
  for (size_t n = 0; n < 3; ++n) {
    for (size_t i = 0; i < results[0][n].size(); ++i)
      EXPECT_NEAR(results[0][n][i], results[1][n][i], 1e-4f) << n << " " << i;
  }
  const Options half = {.dtype = Dtype::kF16};
  EXPECT_EQ(
      pipeline.compile({{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 4, 4}}}, half).extra_outputs()[0].dtype,
      Dtype::kF32);
  EXPECT_SAYS(pipeline.compile({{"input", {0, 3, 4, 5}}, {"kernel", {3, 6, 4, 4}}}), "batch_size is 0");
}

TEST(Plan, RefusesWrongSizesAndOptions) {
  const Example e;
  EXPECT_SAYS(e.pipeline.compile({{"kernel", {3, 6, 3, 2}}}), "input");
  EXPECT_SAYS(e.pipeline.compile({{"input", {2, 3, 4, 5}}}), "kernel");
  EXPECT_SAYS(e.pipeline.compile({{"input", {2, 3, 4, 5}}, {"kernel", {4, 6, 3, 2}}}), "kernel");
  EXPECT_SAYS(e.pipeline.compile({{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 3, 2}}, {"k", {1}}}), "'k'");
  const Shapes shapes = {{"input", {2, 3, 4, 5}}, {"kernel", {3, 6, 3, 2}}};
  EXPECT_SAYS(e.pipeline.compile(shapes, {.threads = -1}), "threads is -1");
  EXPECT_SAYS(e.pipeline.compile(shapes, {.dtype = Dtype::kF64}), "f64");
}

TEST(Plan, MemoryThatCannotBeHadIsAnError) {
  const Plan plan =
      Pipeline::parse("conv_transpose kernel")
          .compile({{"input", {1, 1 << 14, 1}}, {"kernel", {1 << 14, 1 << 14, 1 << 12}}}, kReference);
  float y = -777;
  try {
    plan.pack({{"kernel", &y}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kMemory) << e.what();
  }
  EXPECT_EQ(y, -777);
}

TEST(Plan, AnEmptyBatchGivesAnEmptyOutput) {
  for (const Engine engine : {Engine::kReference, Engine::kCpu}) {
    const Plan plan = Pipeline::parse("conv_transpose kernel | batch_norm")
                          .compile({{"input", {0, 3, 4, 5}}, {"kernel", {3, 6, 3, 2}}}, {.engine = engine});
    EXPECT_EQ(plan.output_shape(), (Shape{0, 6, 6, 6}));
    const float k[3 * 6 * 3 * 2] = {};
    plan.run({{"input", nullptr}, {"kernel", k}}, nullptr);
    plan.run(plan.pack({{"kernel", k}}), nullptr, nullptr);
    EXPECT_SAYS(plan.run({{"input", nullptr}, {"kernel", nullptr}}, nullptr), "kernel is a null pointer");
    EXPECT_FALSE(plan.explain().empty());
  }
}

TEST(PlanCache, KeepsTheLastFew) {
  PlanCache cache(2);
  int made = 0;
  const auto get = [&](uint64_t key) {
    return cache.get({key}, [&] {
      ++made;
      return Pipeline::parse("relu").compile({{"input", {1, 1, 1}}}, kReference);
    });
  };
  get(1), get(2), get(1);
  EXPECT_EQ(made, 2);
  get(3);  // 2 is the oldest
  EXPECT_EQ(cache.size(), 2u);
  get(1), get(3);
  EXPECT_EQ(made, 3);
  get(2);
  EXPECT_EQ(made, 4);
  EXPECT_THROW(cache.get({9}, []() -> Plan { throw Error(Status::kInvalid, "no"); }), Error);
  EXPECT_EQ(cache.size(), 2u);
}

TEST(PlanCache, ThreadsShareIt) {
  PlanCache cache(3);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const int64_t n = static_cast<int64_t>((i * 7 + t) % 5 + 1);
        const Plan plan = cache.get({static_cast<uint64_t>(n)}, [&] {
          return Pipeline::parse("relu").compile({{"input", {1, 1, n}}}, kReference);
        });
        ASSERT_EQ(plan.output_shape().back(), n);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(cache.size(), 3u);
}

// What a run should take: positive, growing with what there is to do, and about the sum of its parts.
TEST(Plan, PredictsItsTime) {
  const Pipeline pipeline = Pipeline::parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu");
  const Pipeline norm = Pipeline::parse("conv_transpose kernel s2 p1 | group_norm 4");
  for (const Engine engine : {Engine::kCpu, Engine::kCuda, Engine::kReference}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      for (const Precision precision : {Precision::kStrict, Precision::kFast}) {
        const Options options = {.dtype = dtype, .engine = engine, .precision = precision, .threads = 2};
        const auto seconds = [&](const Pipeline& p, int64_t batch, int64_t size) {
          return p.predicted_seconds({{"input", {batch, 32, 16, size, size}}, {"kernel", {32, 64, 4, 4, 4}}},
                                     options);
        };
        const double empty = seconds(pipeline, 0, 16), one = seconds(pipeline, 8, 16),
                     two = seconds(pipeline, 16, 16), wide = seconds(pipeline, 8, 32);
        EXPECT_EQ(empty, 0);
        EXPECT_TRUE(std::isfinite(one) && one > 1e-6 && one < 100) << one;
        EXPECT_GT(two, one);
        EXPECT_NEAR(two, 2 * one, 0.4 * two);
        EXPECT_NEAR(wide, 4 * one, 0.4 * wide);
        EXPECT_GT(seconds(norm, 8, 16), 0);
      }
    }
  }
}

TEST(Plan, PredictsWhatItsPipelineDoes) {
  for (const CatalogEntry& entry : catalog()) {
    Shapes shapes = entry.shapes;
    shapes.at("input")[0] = 1;
    if (shapes.contains("addend")) shapes.at("addend")[0] = 1;
    const Pipeline pipeline = Pipeline::named(entry.slug);
    const double planned = pipeline.compile(shapes, {.threads = 2}).predicted_seconds();
    EXPECT_EQ(pipeline.predicted_seconds(shapes, {.threads = 2}), planned) << entry.slug;
    EXPECT_GT(planned, 1e-6) << entry.slug;
    EXPECT_LT(planned, 10) << entry.slug;
    EXPECT_GE(pipeline.predicted_seconds(shapes, {.threads = 1}), 0.9 * planned) << entry.slug;
  }
}

}  // namespace
}  // namespace upweave
