// The five pipelines, and what norms and softmax must survive, on every instruction set of the machine.
#include "cpu_check.h"
#include "graph/graph.h"

namespace upweave::testing {
namespace {

// The machine's sets are all there, and asking for one gives it.
TEST(CpuValues, EveryInstructionSetIsRun) {
  std::vector<std::string> names;
  for_each_target([&](int64_t target) {
    names.emplace_back(hwy::TargetName(target));
    Rng rng(1);
    std::vector<std::string> notes;
    const Data data =
        make_data("conv_transpose kernel 8 k3", {{"input", {1, 4, 5, 6}}}, Dtype::kF32, rng, Values::kNormal);
    run_cpu(data, Dtype::kF32, 1, Algorithm::kDirect, true, &notes);
    std::string said;
    for (const std::string& note : notes) said += note + "\n";
    EXPECT_NE(said.find(names.back()), said.npos) << said;
  });
#ifdef __x86_64__
  std::vector<std::string> expected = {"SCALAR"};
  if (__builtin_cpu_supports("sse4.2")) expected.insert(expected.end(), {"SSSE3", "SSE4"});
  if (__builtin_cpu_supports("avx2")) expected.emplace_back("AVX2");
  if (__builtin_cpu_supports("avx512f")) expected.emplace_back("AVX3");
  for (const std::string& name : expected)
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name << " is not tested";
#endif
}

TEST(CpuValues, FivePipelines) {
  for_each_target([](int64_t) {
    for (const Named& c : kFive) {
      const Shapes shapes = {{"input", c.input}};
      for (const Dtype dtype : kTypes) {
        for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kAuto})
          check(c.text, shapes, 8, dtype, Values::kNormal, true, algorithm);
        check(c.text, shapes, 9, dtype, Values::kSpecial, true, Algorithm::kAuto);
      }
      check(c.text, shapes, 9, Dtype::kF32, Values::kSpecial);
      check(c.text, shapes, 3, Dtype::kF32, Values::kLargeMean, true, Algorithm::kAuto);
    }
  });
}

// Average pools that take normalized rows on their way in, with windows that fit and that do not; and rows
// longer than one float32 sum.
TEST(CpuValues, NormsAndTheirPools) {
  for_each_target([](int64_t) {
    for (const char* pool : {"2", "3x1x2", "1x2x5", "1x1x17", "5x5x1", "3 s4"}) {
      const std::string tail = std::string(" | avg_pool ") + pool;
      const Shapes shapes = {{"input", {2, 6, 5, 6, 17}}};
      for (const Dtype dtype : kTypes)
        check("conv_transpose kernel 37 k2 s1 | layer_norm channel" + tail, shapes, 3, dtype);
      for (const Values values : {Values::kNormal, Values::kLargeMean, Values::kSpecial, Values::kExtreme})
        check("relu | layer_norm channel" + tail, shapes, 4, Dtype::kF32, values);
    }
    for (const Values values : {Values::kNormal, Values::kLargeMean})
      check("layer_norm last", {{"input", {2, 2, 2500}}}, 5, Dtype::kF32, values);
    check("layer_norm channel", {{"input", {1, 2500, 3}}}, 5, Dtype::kF32, Values::kLargeMean);
  });
}

// Many small tiles, whose scratch holds what other tiles left: the same bits for any number of threads.
TEST(CpuValues, SmallTiles) {
  for_each_target([](int64_t) {
    cpu::set_cache_bytes_for_test(1000);
    for (const Named& c : kFive) {
      for (const Dtype dtype : kTypes) check(c.text, {{"input", c.input}}, 10, dtype);
    }
    cpu::set_cache_bytes_for_test(0);
  });
}

// Results below the normal range lose nothing but that range's own steps: no instruction set may take them
// for zero. With some of them among others, too.
TEST(CpuValues, SubnormalResults) {
  for_each_target([](int64_t) {
    for (const Dtype dtype : kTypes) {
      for (const char* text :
           {"conv_transpose kernel 5 k3 s2 p1", "conv_transpose kernel 5 k3 s2 p1 | max_pool 2",
            "mul 0.5 | tanh", "avg_pool 2 | leaky_relu 0.5"}) {
        for (const Values values : {Values::kSubnormal, Values::kSomeSubnormal})
          check(text, {{"input", {2, 3, 5, 6}}}, 21, dtype, values);
      }
    }
    for (const Dtype dtype : kTypes) {  // transforms
      for (const Values values : {Values::kSubnormal, Values::kSomeSubnormal})
        check("conv_transpose kernel 48 k5 s1 p1", {{"input", {2, 48, 9, 10}}}, 21, dtype, values, true,
              Algorithm::kAuto);
    }
    // What float32 still tells apart, bfloat16 does once it is larger.
    for (const Values values : {Values::kSubnormal, Values::kSomeSubnormal})
      check("conv_transpose kernel 40 k3 s2 p1 | mul 1e30", {{"input", {2, 6, 5, 6}}}, 21, Dtype::kBF16,
            values);
  });
}

const char* const kTails[] = {"layer_norm channel", "batch_norm w b",      "group_norm 2 w b",
                              "instance_norm",      "layer_norm last w b", "softmax space",
                              "softmax channel",    "logsumexp channel",   "logsumexp space"};

TEST(CpuValues, LargeMeansAndSpecialValues) {
  for_each_target([](int64_t) {
    for (const char* tail : kTails) {
      const std::string text = std::string("conv_transpose kernel 6 k3 s2 p1 | ") + tail;
      check(text, {{"input", {2, 3, 5, 6}}}, 5, Dtype::kF32, Values::kLargeMean);
      check(tail, {{"input", {2, 4, 5, 6}}}, 6, Dtype::kF32, Values::kLargeMean);
      check(tail, {{"input", {2, 4, 5, 6}}}, 7, Dtype::kF32, Values::kSpecial);
      check(tail, {{"input", {2, 4, 5, 6}}}, 7, Dtype::kF32, Values::kExtreme);
    }
    check("clamp -10000 10000 | softmax space", {{"input", {2, 4, 5, 6}}}, 7, Dtype::kF32, Values::kExtreme);
    check("conv_transpose kernel 6 k3 s2 p1 | clamp -10000 10000 | softmax space | mul scale",
          {{"input", {2, 3, 5, 6}}}, 7, Dtype::kF32, Values::kExtreme);
  });
}

// The bound of a norm around 1e4 is sharp enough to tell: float32 sums of squares are far outside of it.
TEST(CpuValues, ASumOfSquaresWouldBeSeen) {
  Rng rng(1);
  const Data data =
      make_data("instance_norm", {{"input", {2, 4, 8, 8}}}, Dtype::kF32, rng, Values::kLargeMean);
  const Tensor truth = upweave::truth(data.graph, data.tensors, {});
  const std::vector<double>& x = data.tensors.at("input").data;
  int outside = 0;
  for (size_t set = 0; set < 8; ++set) {
    float sum = 0, squares = 0;
    for (size_t i = 0; i < 64; ++i) {
      const auto v = static_cast<float>(x[set * 64 + i]);
      sum += v, squares += v * v;
    }
    const float mean = sum / 64, var = squares / 64 - mean * mean;
    for (size_t i = set * 64; i < set * 64 + 64; ++i) {
      const float y = (static_cast<float>(x[i]) - mean) / std::sqrt(var + 1e-5f);
      outside += fraction_of_bound(y, truth.data[i], truth.err[i], Dtype::kF32) > 1;
    }
  }
  EXPECT_GT(outside, 400) << "of 512";
}

}  // namespace
}  // namespace upweave::testing
