// Texts and shapes that mean harm, or that somebody mistyped: refused with a sentence, or planned in little
// time, memory and stack.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/threads.h"
#include "fresh_seed.h"
#include "graph/limits.h"
#include "graph/ops/conv_transpose.h"
#include "graph/text.h"
#include "upweave/upweave.h"

extern char** environ;

namespace {

// The allocation of this number fails, counted from when it was set.
thread_local int64_t failing = -1;

void* allocate(size_t bytes) {
  if (failing >= 0 && failing-- == 0) throw std::bad_alloc();
  void* p = std::malloc(bytes ? bytes : 1);
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace upweave {
namespace {

std::string many(const std::string& stage, int n) {
  std::string text = stage;
  for (int i = 1; i < n; ++i) text += " | " + stage;
  return text;
}

std::string refusal(const std::string& text, const Shapes& shapes) {
  try {
    Pipeline::parse(text).compile(shapes);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kInvalid) << e.what();
    return e.what();
  }
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// --- sentences

TEST(Excerpt, IsShortAndOneLine) {
  EXPECT_EQ(excerpt("a plain name"), "a plain name");
  EXPECT_EQ(excerpt("a\nb\tc\x1b[0m\x7f"), "a\\nb\\tc\\x1b[0m\\x7f");
  EXPECT_EQ(excerpt(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(excerpt("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(excerpt("\xc3("), "\\xc3(");                  // no UTF-8
  EXPECT_EQ(excerpt("\xc2\x9b"), "\\xc2\\x9b");           // a terminal's escape, in one character
  EXPECT_EQ(excerpt("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half a pair
  EXPECT_EQ(excerpt(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(excerpt(std::string(201, 'x')), std::string(197, 'x') + "...");
  for (size_t n = 60; n < 110; ++n) {  // never half a character
    std::string text;
    for (size_t i = 0; i < n; ++i) text += "\xe2\x82\xac";
    text.insert(0, std::string(n % 3, 'x'));
    const std::string shown = excerpt(text);
    EXPECT_LE(shown.size(), 200u);
    EXPECT_EQ(shown.find('\\'), std::string::npos) << shown;
  }
}

TEST(Sentences, QuoteLittleOfWhatTheyWereGiven) {
  const std::string strange = std::string(1000, 'x') + "\n\x1b[2J";
  const Shapes shapes = {{"input", {1, 4, 8}}};
  for (const std::string& said :
       {refusal(strange, shapes), refusal("relu " + strange, shapes), refusal("add " + strange, shapes),
        refusal("relu as " + strange, shapes), refusal("@" + strange, shapes),
        refusal("sum " + strange, shapes), refusal("max_pool " + strange, shapes),
        refusal("add b:" + strange, shapes), refusal("conv_transpose k s" + strange, shapes),
        refusal("$" + strange, shapes), refusal("relu", {{"input", {1, 4, 8}}, {strange, {1}}}),
        refusal("relu", {{"input", Shape(5000, 7)}})}) {
    EXPECT_NE(said, "");
    EXPECT_LT(said.size(), 700u) << said;
    EXPECT_EQ(said.find_first_of("\n\x1b"), std::string::npos) << said;
  }
}

// --- limits

TEST(Limits, AreStatedInTheSentence) {
  const Shapes line = {{"input", {1, 1, 4}}}, plane = {{"input", {1, 1, 4, 4}}};
  EXPECT_HAS(refusal(many("relu", 20000), line), "more than 600 stages");
  EXPECT_HAS(refusal(std::string(kMaxText + 1, ' '), line), "the pipeline's text has 1048577 bytes");
  EXPECT_HAS(refusal("conv_transpose k 1 k3 s4000", plane), "stride 4000x4000 makes 16000000 phases");
  EXPECT_HAS(refusal("conv_transpose k 1 k100000000", line), "100000000 taps");
  EXPECT_HAS(refusal("conv_transpose k 1 k2147483648 p1073741824", line), "2147483648 taps");
  EXPECT_HAS(refusal("conv_transpose k 1 k2 d4611686018427387903 | max space", {{"input", {1, 1, 1}}}),
             "dilation_w is 4611686018427387903");
  EXPECT_HAS(refusal("conv_transpose k 1 k2 d1099511627775", {{"input", {1, 2, 2}}}), "2^40");
  EXPECT_HAS(refusal("conv_transpose k 1 k2 d549755813888 p274877906944", plane), "2^40 positions");
  EXPECT_HAS(refusal(many("conv_transpose k s128", 2), {{"input", {1, 1, 2, 2}}, {"k", {1, 1, 3, 3}}}),
             "32768 phases");
  EXPECT_HAS(refusal("relu", {{"input", {1 << 20, 1 << 20, 2}}}), "2^40 elements");
  EXPECT_HAS(refusal("relu", {{"input", {0, int64_t{1} << 40, 2}}}), "2^40 elements");
  EXPECT_HAS(refusal("add b", {{"input", {1, 4, 8}}, {"b", {int64_t{1} << 41}}}), "2^40 elements");
}

TEST(Limits, OfTheDecodersVocabulary) {
  const Shapes line = {{"input", {1, 1, 4}}}, plane = {{"input", {1, 1, 4, 4}}};
  EXPECT_HAS(refusal("conv k 1 k100000000 p100000000", line), "100000000 taps");
  EXPECT_HAS(refusal("conv k 1 k2 d4611686018427387903", line), "dilation_w is 4611686018427387903");
  EXPECT_HAS(refusal("conv k 1 k2 p549755813888", plane), "2^40 positions");
  EXPECT_HAS(refusal(many("conv k 1 k100000 p100000", 3), line), "extents of 300000");
  EXPECT_HAS(refusal("conv k b", {{"input", {1, 4, 5}}, {"k", {4}}}), "k has shape 4");
  EXPECT_HAS(refusal("matmul k b", {{"input", {1, 4, 5}}, {"k", {4}}}), "k has shape 4");
  EXPECT_HAS(refusal("param v | weight_norm g as k | @input | conv @k", line), "the shape of v is missing");
  EXPECT_HAS(refusal("pad 1e12", line), "'1e12' is not a whole number");
  EXPECT_HAS(refusal("pad 1000000000000", line), "2^40 elements");
  EXPECT_HAS(refusal("upsample 1000000 linear corners", plane), "2^40 elements");
  EXPECT_HAS(refusal("pixel_unshuffle 16777217", {{"input", {1, 1, 16777217}}}), "16777216 channels");
  EXPECT_HAS(refusal("crop 99999999999999999999:", line), "does not take");
  std::string cats = "cat @input";
  for (int i = 0; i < 60; ++i) cats += " | cat @input @input";
  EXPECT_EQ(refusal(cats, line), "");
  // Extents of 2^39 are planned without a table of them.
  EXPECT_EQ(refusal("pad 274877906940 | crop 5:-5 | conv k 1 k3 s1099511627776 | relu", line), "");
  EXPECT_EQ(refusal("upsample 100000000000 linear corners | crop :4", line), "");
  EXPECT_EQ(refusal("crop -9223372036854775808:9223372036854775807", line), "");
}

TEST(Limits, RanksAreCheckedBeforeTheyAreUsed) {
  EXPECT_HAS(refusal("conv_transpose kernel bias", {{"input", {1, 4, 5, 5}}, {"kernel", {4}}}),
             "kernel has shape 4");
  EXPECT_HAS(refusal("param a | add b as q | @input | mul @q", {{"input", {1, 4, 5}}, {"a", {5}}}),
             "add meets a value of shape 5");
}

// Strides that lie in no extent multiply.
TEST(Limits, PoolsOfOneWindow) {
  const Plan plan =
      Pipeline::parse(many("max_pool 1 s4611686018427387904", 9)).compile({{"input", {1, 1, 7}}});
  EXPECT_EQ(plan.output_shape(), (Shape{1, 1, 1}));
  const float x[7] = {3, 1, 4, 1, 5, 9, 2};
  float y = 0;
  plan.run({{"input", x}}, &y);
  EXPECT_EQ(y, 3);
}

// The closed form of the taps that reach an output, against counting them.
TEST(Limits, TapsAreCountedWithoutVisitingThem) {
  const unsigned seed = testing::fresh_seed();
  std::mt19937 random(seed);
  const auto draw = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int i = 0; i < 20000; ++i) {
    ConvGeometry g;
    g.spatial = 1;
    g.in = {draw(1, 9)}, g.kernel = {draw(1, 9)}, g.stride = {draw(1, 7)}, g.dilation = {draw(1, 5)};
    g.padding = {draw(0, 12)}, g.out = {draw(1, 40)}, g.step = {1};
    if (draw(0, 1) == 0) g.stride = {1}, g.step = {draw(1, 4)};
    int64_t all = 0, landing = 0;
    for (int64_t k = 0; k < g.kernel[0]; ++k) {
      int64_t inputs = 0;
      for (int64_t x = 0; x < g.in[0]; ++x) {
        const int64_t o = x * g.stride[0] - g.padding[0] + k * g.dilation[0];
        inputs += o >= 0 && o % g.step[0] == 0 && o / g.step[0] < g.out[0];
      }
      all += inputs;
      landing += inputs > 0;
    }
    ASSERT_EQ(taps_total(g, 0), all) << "seed " << seed;
    if (!g.every_output()) continue;
    if (all_taps_land(g, 0)) {
      ASSERT_EQ(landing, g.kernel[0]) << "seed " << seed;
    } else if (g.out[0] >= g.stride[0]) {
      ASSERT_LT(landing, g.kernel[0]) << "seed " << seed;
    }
  }
}

// --- stack

void* plan_on_this_stack(void*) {
  const Shapes shapes = {{"input", {1, 2, 4, 4}}};
  for (const char* stage : {"relu", "max_pool 1", "softmax space", "instance_norm", "add @input"}) {
    const Plan plan = Pipeline::parse(many(stage, 300)).compile(shapes);
    if (plan.explain().empty()) return nullptr;
    std::vector<float> x(32, 1.0f), y(32);
    plan.run({{"input", x.data()}}, y.data());
  }
  static int fine;
  return &fine;
}

TEST(Stack, DoesNotGrowWithTheText) {
#ifdef __SANITIZE_ADDRESS__
  constexpr size_t kBytes = size_t{1} << 20;  // frames are larger
#else
  constexpr size_t kBytes = size_t{128} << 10;
#endif
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kBytes), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, plan_on_this_stack, nullptr), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_NE(result, nullptr);
}

// --- time and memory

struct Usage {
  int code;
  double seconds;
  int64_t bytes;
};

Usage explain(const std::string& text, const std::string& input, const std::string& more) {
  std::vector<std::string> words = {UPWEAVE_CLI, "explain", text, "--input", input};
  if (!more.empty()) words.insert(words.end(), {"--engine", more});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int fd : {1, 2}) posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
  // Planning alone is measured: kernels are compiled where a compiler is found.
  std::vector<char*> environment;
  for (char** variable = environ; *variable; ++variable) {
    if (!std::string_view(*variable).starts_with("UPWEAVE_NVRTC=")) environment.push_back(*variable);
  }
  std::string nowhere = "UPWEAVE_NVRTC=/nowhere";
  environment.push_back(nowhere.data());
  environment.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environment.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  rusage used = {};
  EXPECT_EQ(wait4(child, &status, 0, &used), child);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, seconds(used.ru_utime) + seconds(used.ru_stime),
          int64_t{used.ru_maxrss} * 1024};
}

// A second and 256 MB, on any machine: five of its seconds here.
TEST(Planning, TakesLittleTimeAndMemory) {
  struct Case {
    std::string text, input;
  };
  std::vector<Case> cases = {
      {"conv_transpose k 1 k3 s4000", "1x1x4x4"},
      {"conv_transpose k 1 k3 s8000", "1x1x4x4"},
      {"conv_transpose k 1 k3 s400", "1x1x4x4x4"},
      {"conv_transpose k 1 k3 s128", "1x1x4x4"},
      {"conv_transpose k 1 k3 s25", "1x1x4x4x4"},
      {"conv_transpose k 1 k3x131072 s16384x1", "1x1x4x4"},
      {"conv_transpose k 1 k100000000", "1x1x4"},
      {"conv_transpose k 1 k262144 s2 | mean space", "1x1x4"},
      {"conv_transpose k 1 k2147483648 p1073741824", "1x1x4"},
      {"conv_transpose k 1 k2 d4611686018427387903 | max space", "1x1x1"},
      {"conv_transpose k 1 k2 d1099511627774 | max space", "1x1x1"},
      {"conv_transpose k 1099511627776 k1 g1099511627776", "1x1099511627776x1"},
      {"max_pool 1 s1000000 | softmax space", "1x1x1099511627776"},
  };
  for (const char* stage :
       {"max_pool 1", "batch_norm", "softmax space", "group_norm 2", "instance_norm", "relu", "mean space",
        "layer_norm channel", "add @input", "max_pool 2 s1 | relu"}) {
    const int fits = std::string_view(stage).find('|') == std::string_view::npos ? 598 : 299;
    cases.push_back({many(stage, fits), "2x4x600x600"});
    cases.push_back({many(stage, 5000), "2x4x600x600"});
  }
  std::string means = "conv_transpose k 4 k33 s2 p3 as y";
  for (int i = 0; i < 200; ++i)
    means += " | mean space | relu as m" + std::to_string(i) + " | @y | sub @m" + std::to_string(i) +
             (i < 199 ? " | @y" : "");
  cases.push_back({means, "2x4x16x16"});
  for (const Case& c : cases) {
    for (const char* engine : {"cpu", "cuda"}) {
      const Usage used = explain(c.text, c.input, engine);
      EXPECT_TRUE(used.code == 0 || used.code == 2) << c.text.substr(0, 80) << ": " << used.code;
#ifdef __SANITIZE_ADDRESS__
      EXPECT_LT(used.seconds, 50) << engine << ": "
                                  << c.text.substr(0, 80);  // ten times as slow, unoptimised
#else
      EXPECT_LT(used.seconds, 5) << engine << ": " << c.text.substr(0, 80);
      EXPECT_LT(used.bytes, int64_t{256} << 20) << engine << ": " << c.text.substr(0, 80);
#endif
    }
  }
}

// --- memory that cannot be had

TEST(Memory, EveryFailedAllocationOfAnExplanationIsAStatus) {
  upweave_pipeline* pipeline = nullptr;
  ASSERT_EQ(
      upweave_parse("conv_transpose kernel 4 k3 s2 | batch_norm | max_pool 2 | add b", nullptr, 0, &pipeline),
      UPWEAVE_OK);
  const int64_t extents[] = {2, 3, 8, 8};
  const upweave_shape shape = {"input", extents, 4};
  int64_t failed = 0;
  for (const auto& explanation : {upweave_explain, upweave_explain_json}) {
    for (int64_t n = 0;; ++n) {
      upweave_plan* plan = nullptr;
      ASSERT_EQ(upweave_compile(pipeline, &shape, 1, nullptr, &plan), UPWEAVE_OK) << upweave_last_error();
      failing = n;
      const char* text = explanation(plan);
      failing = -1;
      if (text == nullptr) {
        ++failed;
        EXPECT_HAS(std::string(upweave_last_error()), "memory");
        EXPECT_NE(explanation(plan), nullptr);  // the next call has its memory
      }
      upweave_plan_free(plan);
      if (text != nullptr) break;
    }
  }
  EXPECT_GT(failed, 100);
  upweave_pipeline_free(pipeline);
}

TEST(Memory, TheJsonIsJson) {
  const Plan plan = Pipeline::parse("conv_transpose kernel 4 k3 s2 | batch_norm | max_pool 2 | add b")
                        .compile({{"input", {2, 3, 8, 8}}});
  const auto json = nlohmann::json::parse(plan.explain_json());
  EXPECT_EQ(json["tensors"]["kernel"], nlohmann::json({3, 4, 3, 3}));
  EXPECT_EQ(json["output_shape"], nlohmann::json({2, 4, 8, 8}));
  EXPECT_EQ(json["cost"]["unfused_passes"], 4);
  EXPECT_FALSE(json["laws"].empty());
  EXPECT_FALSE(json["passes"][0]["stages"].empty());
  EXPECT_TRUE(json["cost"]["flops"].is_number());
}

// --- threads

TEST(Threads, ThereIsALimit) {
  EXPECT_LE(usable_threads(1 << 30), kMaxThreads);
  EXPECT_EQ(usable_threads(1), 1);
  EXPECT_GE(usable_threads(2), 1);
}

}  // namespace
}  // namespace upweave
