// What the CUDA engine makes of plans, without a GPU or a compiler: which nodes share a kernel, and what is
// written.
#include <gtest/gtest.h>

#include "api/road.h"
#include "engine/cuda/code.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/lower.h"
#include "graph/text.h"

namespace upweave::cuda {
namespace {

Lowered lower_text(const std::string& text, const Shapes& shapes, Precision precision = Precision::kFast,
                   bool hopper = true, Dtype dtype = Dtype::kF32) {
  Options options;
  options.dtype = dtype;
  options.engine = Engine::kCuda;
  options.precision = precision;
  Chip chip;
  if (!hopper)
    chip = {.major = 8, .minor = 0, .shared_bytes = 163 << 10, .multiprocessors = 108, .wgmma = false};
  return lower(lower_to_plan(parse_text(text), shapes, options), options, chip);
}

std::string joined(const std::vector<std::string>& notes) {
  std::string all;
  for (const std::string& note : notes) all += note + "\n";
  return all;
}

TEST(CudaLower, FivePipelinesFuse) {
  struct Expected {
    const char *slug, *nodes;
    size_t launches;
    double megabytes;  // the fp16 copy and statistics: nothing of the output's size
  };
  for (const Expected& e : {
           Expected{"conv-transpose3d-sum-layernorm-avgpool-gelu",
                    "conv_transpose | rms_norm | avg_pool | gelu", 5, 40},
           Expected{"conv-transpose3d-layernorm-gelu-scaling", "conv_transpose | rms_norm | gelu", 5, 40},
           Expected{"conv-transpose3d-max-max-sum", "conv_transpose | max_pool | add | sum", 6, 35},
           Expected{"conv-transpose3d-avgpool-clamp-softmax-multiply",
                    "conv_transpose | clamp | sub | exp | div | mul", 10, 45},
           Expected{"conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
                    "conv_transpose | max_pool | moments", 7, 80},
       }) {
    for (const CatalogEntry& entry : catalog()) {
      if (entry.slug != e.slug) continue;
      const Lowered lowered = lower_text(Pipeline::named(entry.slug, entry.settings).text(), entry.shapes);
      EXPECT_NE(joined(lowered.notes).find(e.nodes), std::string::npos) << joined(lowered.notes);
      EXPECT_EQ(lowered.run.size(), e.launches) << e.slug;
      EXPECT_LT(static_cast<double>(lowered.workspace_bytes), e.megabytes * 1e6) << e.slug;
    }
  }
}

// In every element type: the fp16 copy of what the convolution reads (strict float32: hi and lo), with gaps
// and statistics at most 30% more. Nothing of the output's size.
TEST(CudaLower, ExtraMemoryIsTheCopy) {
  for (const CatalogEntry& entry : catalog()) {
    if (!entry.slug.starts_with("conv-")) continue;  // the five documents
    const double copy = 2. * static_cast<double>(count(entry.shapes.at("input"))) /
                        (entry.slug.find("avgpool-clamp") != std::string::npos ? 8 : 1);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      for (const Precision precision : {Precision::kFast, Precision::kStrict}) {
        const Lowered lowered = lower_text(Pipeline::named(entry.slug, entry.settings).text(), entry.shapes,
                                           precision, true, dtype);
        // What is computed before the convolution is no fp16 number, whatever the elements are.
        const bool lo = precision == Precision::kStrict &&
                        (dtype == Dtype::kF32 || entry.slug.find("avgpool-clamp") != std::string::npos);
        EXPECT_LT(static_cast<double>(lowered.workspace_bytes), 1.3 * copy * (lo ? 2 : 1)) << entry.slug;
      }
    }
  }
}

// A norm that holds its set stores 16 bytes at a time, wherever its operand lies.
TEST(CudaLower, OutputsOf16BytesAreAligned) {
  for (const int64_t height : {1, 32}) {  // one line is not divided
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
      const Lowered lowered =
          lower_text("conv_transpose kernel 128 k5 s1 p1 | batch_norm w b | tanh | max_pool 2 | group_norm 8",
                     {{"input", {512, 64, height, 32}}}, Precision::kFast, true, dtype);
      EXPECT_NE(joined(lowered.notes).find("line by line"), std::string::npos);
      EXPECT_EQ(lowered.output_alignment, 16);
    }
  }
}

TEST(CudaLower, TheWholeCatalogHasKernels) {
  for (const CatalogEntry& entry : catalog()) {
    for (const Precision precision : {Precision::kFast, Precision::kStrict}) {
      for (const bool hopper : {true, false}) {
        const Lowered lowered =
            lower_text(Pipeline::named(entry.slug, entry.settings).text(), entry.shapes, precision, hopper);
        EXPECT_FALSE(lowered.run.empty()) << entry.slug;
        for (const Launch& launch : lowered.run) {
          EXPECT_NE(lowered.source.find(" " + launch.kernel + "(const Args a"), std::string::npos)
              << launch.kernel;
          EXPECT_LE(launch.shared, hopper ? 227u << 10 : 163u << 10) << entry.slug << " " << launch.kernel;
        }
      }
    }
  }
}

// A reduction over all outputs must see those that the pool's floor division drops.
TEST(CudaLower, MomentsSeeWhatThePoolDrops) {
  const Lowered lowered = lower_text("conv_transpose kernel 24 k5 s1 p1 | batch_norm w b | max_pool 2",
                                     {{"input", {5, 7, 9, 8}}});
  EXPECT_NE(joined(lowered.notes).find("conv_transpose | max_pool | moments"), std::string::npos)
      << joined(lowered.notes);
  EXPECT_NE(lowered.source.find("kJh = 6;"),
            std::string::npos);  // 11 outputs: five windows, and one row more
}

// Both co-scheduled passes meet every sample once, the second after the first.
TEST(CudaLower, CoScheduledPassesGoThroughTheSamplesTwice) {
  for (const int64_t batch : {32, 33, 47}) {
    const Lowered lowered = lower_text("conv_transpose kernel 64 k3 s2 p1 op1 | clamp 0 1 | softmax space",
                                       {{"input", {batch, 32, 16, 32, 32}}});
    int64_t done[2] = {}, legs = 0;
    for (const Launch& launch : lowered.run) {
      if (launch.numbers.empty()) continue;
      ++legs;
      ASSERT_EQ(launch.numbers.size(), 12u);  // first job, jobs, blocks by partition: of both
      const int64_t before = done[0];
      int64_t blocks = 0;
      for (size_t role = 0; role < 2; ++role) {
        const int first = launch.numbers[role], jobs = launch.numbers[2 + role];
        int64_t own = 0;
        for (size_t o = 0; o < 4; ++o) {
          const int these = launch.numbers[4 + 4 * role + o];
          EXPECT_LE(these, jobs);
          own += these;
        }
        EXPECT_EQ(own > 0, jobs > 0);
        blocks += own;
        if (jobs == 0) continue;
        EXPECT_EQ(first, done[role]);
        done[role] += jobs;
      }
      EXPECT_LE(done[1], before);  // both have tiles of one size here
      EXPECT_EQ(blocks, launch.grid[0]);
      EXPECT_EQ(blocks, Chip{}.multiprocessors);
    }
    EXPECT_EQ(legs, 3);
    EXPECT_EQ(done[0], done[1]);
    EXPECT_EQ(done[0] % batch, 0);
  }
}

// The inputs behind the first are more arguments, which a pipeline with one does not have; a convolution
// reads any of them, and what follows it reads them as it reads full parameters.
TEST(CudaLower, SeveralInputsAreMoreArguments) {
  const Shapes shapes = {{"x", {2, 8, 6, 7}}, {"skip", {2, 16, 12, 14}}, {"other", {2, 8, 6, 7}}};
  const Lowered lowered = lower_text(
      "input x skip other | @other | conv_transpose kernel 16 k4 s2 p1 | add @skip | relu", shapes);
  EXPECT_EQ(lowered.inputs, (std::vector<std::string>{"x", "skip", "other"}));
  EXPECT_NE(joined(lowered.notes).find("conv_transpose | add | relu"), std::string::npos)
      << joined(lowered.notes);
  for (const char* text : {"const u8* more[2];", "a.more[0]", "a.more[1]"})
    EXPECT_NE(lowered.source.find(text), std::string::npos) << text;
  const Lowered one = lower_text("conv_transpose kernel 16 k4 s2 p1 | relu", {{"input", {2, 8, 6, 7}}});
  EXPECT_EQ(one.source.find("const u8* more"), std::string::npos);
}

TEST(CudaLower, GroupsTakeTheGeneralRoad) {
  const Lowered lowered = lower_text("conv_transpose kernel 8 k3 s2 p1 g2 | relu", {{"input", {2, 6, 5, 7}}});
  EXPECT_NE(joined(lowered.notes).find("groups"), std::string::npos);
  EXPECT_EQ(lowered.run.size(), 2u);
}

TEST(CudaCode, FillsNamedPlaces) {
  EXPECT_EQ(code("if ($a) { x[$n$ll] = $a; } $end", {{"a", "b < 3"}, {"n", 12}, {"end", true}}),
            "if (b < 3) { x[12ll] = b < 3; } true");
  EXPECT_THROW(code("$a $b", {{"a", 1}}), Error);
  EXPECT_THROW(code("$a", {{"a", 1}, {"b", 2}}), Error);
}

TEST(CudaDriver, IsThereOrSaysWhatIsMissing) {
  try {
    current_device();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("the CUDA engine needs"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace upweave::cuda
