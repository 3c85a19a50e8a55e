// Every kernel of the five pipelines at the documents' sizes, of other chains, and of odd shapes, through
// NVRTC, without a GPU: they must compile for Hopper and for Ampere, hold the matrix instructions they are
// meant to, and keep everything in registers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "api/road.h"
#include "base/words.h"
#include "engine/cuda/cubin.h"
#include "engine/cuda/lower.h"
#include "engine/cuda/nvrtc.h"
#include "graph/text.h"

namespace upweave::cuda {
namespace {

struct Case {
  std::string name, text;
  Shapes shapes;
  bool document = false, chain = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.text; }

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"one_axis", "conv_transpose kernel 16 k3 s2 p1 | relu", {{"input", {3, 4, 70}}}},
      {"stride_three", "conv_transpose kernel 33 k4 s3 p2 op1 | gelu", {{"input", {2, 18, 9, 17}}}},
      {"stride_four", "conv_transpose kernel 8 k5 s4 p1 op3 | tanh", {{"input", {2, 33, 5, 40}}}},
      {"dilated", "conv_transpose kernel 20 k3 s2 p1 op1 d2 | sigmoid", {{"input", {2, 16, 6, 7, 9}}}},
      {"many_channels", "conv_transpose kernel 200 k3 s1 p1 | relu", {{"input", {1, 150, 12, 11}}}},
      {"mixed_strides",
       "conv_transpose kernel 64 k3x1x4 s1x2x2 p1x0x1 | layer_norm channel",
       {{"input", {2, 64, 5, 9, 8}}}},
      {"odd_norm",
       "conv_transpose kernel 19 k4x3x4 s2 p1 | layer_norm channel | gelu | mul 1.5",
       {{"input", {2, 5, 3, 4, 5}}}},
      {"few_columns",
       "conv_transpose kernel 16 k3 s2 p1 | layer_norm channel | gelu",
       {{"input", {2, 32, 7, 6, 5}}}},
      {"odd_batchnorm",
       "conv_transpose kernel 24 k3 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 8 gw gb",
       {{"input", {5, 7, 9, 8}}}},
      {"lines",
       "conv_transpose kernel 48 k3 s1 p1 | batch_norm w b | max_pool 2",
       {{"input", {70, 70, 11, 12}}}},
      {"strided_lines",
       "conv_transpose kernel 24 k3 s2x1 p1 | avg_pool 2 | relu",
       {{"input", {33, 5, 7, 9}}}},
      {"whole_lines",
       "conv_transpose kernel 100 k3 s2 p1 | mul scale | max_pool 4 | tanh",
       {{"input", {2, 12, 5, 9, 11}}}},
      {"sweep",
       "conv_transpose kernel 50 k3x4x4 s1x2x2 p1 | add bias | tanh",
       {{"input", {2, 12, 7, 8, 16}}}},
      {"two_sweeps",
       "conv_transpose kernel 64 k3 s2 p1 op1 | clamp -1 1 | softmax space",
       {{"input", {4, 16, 2, 8, 16}}}},
      {"sweep_softmax",
       "conv_transpose kernel 50 k3 s2 p1 | softmax channel",
       {{"input", {2, 32, 5, 8, 16}}}},
      {"sweep_softmax_again",
       "conv_transpose kernel 64 k3 s2 p1 op1 | sigmoid as y | softmax channel | mul @y",
       {{"input", {2, 32, 5, 8, 16}}}},
      {"pooled", "conv_transpose kernel 48 k3 s2 p1 | max_pool 2 | tanh", {{"input", {2, 32, 12, 16, 16}}}},
      {"no_tap", "conv_transpose kernel 48 k3x3x1 s2 p1x1x0 | tanh", {{"input", {2, 32, 5, 16, 16}}}},
  };
  // Of the other chains those that take least: not the documents' own under other names, not a third and a
  // fourth of pointwise operations alone, nor one whose moments the compiler ponders for ten seconds.
  const std::set<std::string> slow = {"03", "11", "16", "26", "34", "38", "77", "78"};
  for (const CatalogEntry& entry : catalog()) {
    const bool document = entry.slug.starts_with("conv-transpose");
    const size_t number = entry.slug.find_first_of("0123456789");
    if (!document && slow.contains(entry.slug.substr(number, entry.slug.find('-', number) - number)))
      continue;
    all.push_back(
        {entry.slug, Pipeline::named(entry.slug, entry.settings).text(), entry.shapes, document, !document});
  }
  return all;
}

const Chip kHopper,
    kAmpere = {.major = 8, .minor = 0, .shared_bytes = 163 << 10, .multiprocessors = 108, .wgmma = false};

class CudaCompile : public ::testing::TestWithParam<Case> {};

TEST_P(CudaCompile, HoldsItsInstructions) {
  std::string why;
  if (nvrtc_version(&why).empty()) GTEST_SKIP() << why;
  const Case& c = GetParam();
  struct Kind {
    Dtype dtype;
    Precision precision;
  };
  std::vector<Kind> kinds = {{Dtype::kF32, Precision::kFast}, {Dtype::kF32, Precision::kStrict}};
  if (c.document) {
    kinds.push_back({Dtype::kF16, Precision::kStrict});
    kinds.push_back({Dtype::kBF16, Precision::kFast});
  }
  const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
  if (effort && std::string(effort) == "light") kinds.resize(1);
  for (const auto& [dtype, precision] : kinds) {
    const Options options = {.dtype = dtype, .engine = Engine::kCuda, .precision = precision};
    const FusedPlan plan = lower_to_plan(parse_text(c.text), c.shapes, options);
    for (const Chip& chip : {kHopper, kAmpere}) {
      const Lowered lowered = lower(plan, options, chip);
      const Compiled compiled = compile(lowered.source, chip.arch(), false);
      const std::string kind =
          fmt::format("{} {} {} {}", c.name, chip.arch(), name_of(dtype), name_of(precision));
      EXPECT_EQ(compiled.log.find("wgmma.mma_async instructions are serialized"), std::string::npos)
          << kind << "\n"
          << compiled.log;
      const auto kernels = inspect(compiled.cubin);
      std::vector<Launch> launches = lowered.pack;
      launches.insert(launches.end(), lowered.run.begin(), lowered.run.end());
      for (const Launch& launch : launches) {
        SCOPED_TRACE(kind + " " + launch.kernel);
        ASSERT_TRUE(kernels.contains(launch.kernel));
        const KernelFacts& facts = kernels.at(launch.kernel);
        EXPECT_GT(facts.instructions, 0);
        EXPECT_GT(facts.registers, 0);
        EXPECT_TRUE(facts.stack == 0 && facts.local == 0)
            << "registers are spilled: " << facts.stack << " bytes a thread in memory, " << facts.local
            << " loads and stores";
        // Some chains' tiles do not fit Ampere's shared memory: there the convolution goes the general way.
        const bool general = launch.kernel.starts_with("conv_transpose");
        EXPECT_FALSE(general && (chip.wgmma || !c.chain));
        const bool products =
            launch.kernel.starts_with("conv_") && !launch.kernel.starts_with("conv_fma") && !general;
        if (products) {
          EXPECT_GT(chip.wgmma ? facts.wgmma : facts.mma, 0) << "matrix instructions";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaCompile, ::testing::ValuesIn(cases()), [](const auto& i) {
  std::string name = i.param.name;
  for (char& ch : name) {
    if (!isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
});

// The cache gives back what the compiler gave, and a file that was cut short is compiled anew.
TEST(CudaCache, SurvivesATornFile) {
  std::string why;
  if (nvrtc_version(&why).empty()) GTEST_SKIP() << why;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("upweave-cache-{}", getpid());
  const char* before = std::getenv("UPWEAVE_CACHE");
  const std::string kept = before ? before : "";
  setenv("UPWEAVE_CACHE", folder.c_str(), 1);
  const std::string source = "extern \"C\" __global__ void f(int* p) { *p = 7; }";
  const Compiled first = compile(source, "sm_80");
  EXPECT_FALSE(first.cached);
  const Compiled second = compile(source, "sm_80");
  EXPECT_TRUE(second.cached);
  EXPECT_EQ(first.cubin, second.cubin);
  EXPECT_FALSE(compile(source, "sm_90a").cached);
  for (const auto& file : std::filesystem::directory_iterator(folder))
    std::filesystem::resize_file(file.path(), 100);
  const Compiled third = compile(source, "sm_80");
  EXPECT_FALSE(third.cached);
  EXPECT_EQ(first.cubin, third.cubin);
  std::filesystem::remove_all(folder);
  before ? setenv("UPWEAVE_CACHE", kept.c_str(), 1) : unsetenv("UPWEAVE_CACHE");
}

TEST(CudaCompiler, SaysWhatIsWrong) {
  std::string why;
  if (nvrtc_version(&why).empty()) GTEST_SKIP() << why;
  try {
    compile("this is no program", "sm_80", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInternal);
    EXPECT_NE(std::string(error.what()).find("sm_80"), std::string::npos);
  }
}

}  // namespace
}  // namespace upweave::cuda
