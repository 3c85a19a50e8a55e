// Every kernel of the five pipelines at the documents' sizes, and of some odd shapes, through NVRTC, without
// a GPU: they must compile for Hopper and for Ampere, hold the matrix instructions they are meant to, and
// keep their sums in registers.
#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/cuda/lower.h"
#include "engine/cuda/nvrtc.h"
#include "engine/engine.h"
#include "graph/text.h"

namespace upweave::cuda {
namespace {

struct Instructions {
  int matrix = 0, local = 0, all = 0;
};

// Counts a kernel's instructions: 16 bytes each, the operation in the low 12 bits.
Instructions count_instructions(const std::string& cubin, const std::string& kernel) {
  constexpr uint64_t kHgmma = 0x9f0, kHmma = 0x23c, kStoreLocal = 0x387, kLoadLocal = 0x983;
  Instructions found;
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return found;
  std::memcpy(&header, cubin.data(), sizeof header);
  auto section = [&](size_t i) {
    Elf64_Shdr s;
    std::memcpy(&s, cubin.data() + header.e_shoff + i * header.e_shentsize, sizeof s);
    return s;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    if (std::string(cubin.c_str() + names.sh_offset + s.sh_name) != ".text." + kernel) continue;
    for (uint64_t at = 0; at + 16 <= s.sh_size; at += 16) {
      uint64_t word;
      std::memcpy(&word, cubin.data() + s.sh_offset + at, sizeof word);
      const uint64_t operation = word & 0xfff;
      ++found.all;
      found.matrix += operation == kHgmma || operation == kHmma;
      found.local += operation == kStoreLocal || operation == kLoadLocal;
    }
  }
  return found;
}

struct Case {
  std::string name, text;
  Shapes shapes;
  int local_limit;  // instructions that touch local memory, a kernel
};

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"one_axis", "conv_transpose kernel 16 k3 s2 p1 | relu", {{"input", {3, 4, 70}}}, 0},
      {"stride_three", "conv_transpose kernel 33 k4 s3 p2 op1 | gelu", {{"input", {2, 18, 9, 17}}}, 64},
      {"many_channels", "conv_transpose kernel 200 k3 s1 p1 | relu", {{"input", {1, 150, 12, 11}}}, 64},
  };
  for (const CatalogEntry& entry : catalog()) {
    if (entry.slug.starts_with("conv-transpose")) {
      // A few bytes may leave the registers where products are three and two phases wait to be stored.
      all.push_back({entry.slug, Pipeline::named(entry.slug, entry.settings).text(), entry.shapes, 64});
    }
  }
  return all;
}

class CudaCompile : public ::testing::TestWithParam<Case> {};

TEST_P(CudaCompile, HoldsItsInstructions) {
  std::string why;
  if (nvrtc_version(&why).empty()) GTEST_SKIP() << why;
  const Case& c = GetParam();
  const Graph graph = infer(parse_text(c.text), c.shapes);
  const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
  const bool light = effort && std::string(effort) == "light";
  for (const Precision precision : {Precision::kFast, Precision::kStrict}) {
    if (light && precision == Precision::kStrict) continue;
    Options options;
    options.engine = Engine::kCuda;
    options.precision = precision;
    const FusedPlan plan = make_plan(graph, target_of(Engine::kCuda), options.dtype);
    for (const bool hopper : {true, false}) {
      Chip chip;
      if (!hopper)
        chip = {.major = 8, .minor = 0, .shared_bytes = 163 << 10, .multiprocessors = 108, .wgmma = false};
      const Lowered lowered = lower(plan, options, chip);
      const Compiled compiled = compile(lowered.source, chip.arch());
      for (const Launch& launch : lowered.run) {
        const Instructions found = count_instructions(compiled.cubin, launch.kernel);
        SCOPED_TRACE(fmt::format("{} for {}, {}", launch.kernel, chip.arch(),
                                 precision == Precision::kFast ? "fast" : "strict"));
        EXPECT_GT(found.all, 0);
        const bool conv = launch.kernel.starts_with("conv_") && !launch.kernel.starts_with("conv_fma");
        if (!conv) continue;
        EXPECT_GT(found.matrix, 0) << "no matrix instruction";
        if (hopper) {
          EXPECT_LE(found.local, c.local_limit) << "sums or addresses spill";
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
  unsetenv("UPWEAVE_CACHE");
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
