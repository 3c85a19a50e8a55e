// What `explain --engine cuda` says, on a machine with a GPU or without.
#include <gtest/gtest.h>

#include <cstdlib>

#include "api/road.h"
#include "engine/cuda/describe.h"
#include "engine/cuda/nvrtc.h"

namespace upweave::cuda {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

FusedPlan plan_of(const std::string& slug) {
  for (const CatalogEntry& entry : catalog()) {
    if (entry.slug != slug) continue;
    return lower_to_plan(Pipeline::named(slug).graph(), entry.shapes, {.engine = Engine::kCuda});
  }
  throw invalid("no pipeline is called {}", slug);
}

TEST(CudaExplain, ShowsKernelsAndTimes) {
  const Options options = {.engine = Engine::kCuda, .precision = Precision::kFast};
  const FusedPlan plan = plan_of("conv-transpose3d-sum-layernorm-avgpool-gelu");
  const std::string text = joined(describe_anywhere(plan, options));
  for (const char* word : {"conv_0", "rows x", "KB of shared memory", "predicted: ", "floor: "})
    EXPECT_NE(text.find(word), text.npos) << word << " in\n" << text;
  const bool compiled = !nvrtc_version().empty();
  EXPECT_EQ(text.find("registers") != text.npos, compiled) << text;
  EXPECT_EQ(text.find("not compiled") != text.npos, !compiled) << text;
}

TEST(CudaExplain, SaysThatAnH200IsAssumed) {
  try {
    current_device();
    GTEST_SKIP() << "there is a GPU";
  } catch (const Error&) {
  }
  const Options options = {.engine = Engine::kCuda};
  const std::string text = joined(describe_anywhere(plan_of("conv-transpose3d-max-max-sum"), options));
  EXPECT_NE(text.find("there is no GPU here"), text.npos) << text;
  EXPECT_NE(text.find("H200"), text.npos) << text;
}

TEST(CudaExplain, RefusesWhatTheEngineHasNot) {
  EXPECT_THROW(describe_anywhere(plan_of("conv-transpose3d-max-max-sum"), {.dtype = Dtype::kF64}), Error);
}

// The floors of the documents' five on an H200: products at 762 TFLOP/s, three of them where float32's
// accuracy is promised, or input and output at 4.25 TB/s. In milliseconds, to the two digits that are known.
TEST(CudaExplain, KnowsTheFloors) {
  struct Floor {
    const char* slug;
    double fast, strict;
  };
  for (const Floor& floor : {Floor{"conv-transpose3d-sum-layernorm-avgpool-gelu", 0.073, 0.22},
                             {"conv-transpose3d-layernorm-gelu-scaling", 0.27, 0.51},
                             {"conv-transpose3d-max-max-sum", 0.28, 0.85},
                             {"conv-transpose3d-avgpool-clamp-softmax-multiply", 0.38, 0.44},
                             {"conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", 0.27, 0.82}}) {
    const FusedPlan plan = plan_of(floor.slug);
    for (const bool strict : {false, true}) {
      const Options options = {.engine = Engine::kCuda,
                               .precision = strict ? Precision::kStrict : Precision::kFast};
      const double want = strict ? floor.strict : floor.fast;
      EXPECT_NEAR(floor_of(plan, options, Rates()) * 1e3, want, 0.025 * want) << floor.slug << strict;
      // What the kernels do is at least what the plan must; tiles that hang over do more, never half again.
      double products = 0, bytes = 0;
      for (const Launch& launch : lower(plan, options, Chip()).run) {
        products += launch.work.products;
        bytes += launch.work.bytes;
      }
      double least = 0;
      for (const Pass& pass : plan.passes) least += flops(plan.graph, pass.conv == kNone ? 0 : pass.conv);
      least *= strict ? 3 : 1;
      EXPECT_GE(products, least) << floor.slug << strict;
      EXPECT_LE(products, 1.5 * least) << floor.slug << strict;
      EXPECT_GE(bytes,
                4.0 * static_cast<double>(count(plan.source[0].shape) + count(visible_shape(plan.source))))
          << floor.slug << strict;
    }
  }
}

// The general road was measured to be slow: what is predicted of it must not be the memory's rate.
TEST(CudaExplain, PredictsTheGeneralRoad) {
  const Options options = {.engine = Engine::kCuda, .precision = Precision::kFast};
  struct Measured {
    const char* slug;
    double seconds;  // on an H200
  };
  for (const Measured& m : {Measured{"kernelbench-03-add-layernorm-avgpool-gelu", 11.2e-3},
                            {"kernelbench-13-mean-add-softmax-tanh-mul", 20.5e-3},
                            {"kernelbench-42-mean-add-logsumexp-sum-mul", 6.27e-3},
                            {"kernelbench-26-add-hardswish-mul", 4.84e-3}}) {
    const FusedPlan plan = plan_of(m.slug);
    const double seconds = predict(lower(plan, options, Chip()), Rates());
    EXPECT_NEAR(seconds, m.seconds, 0.25 * m.seconds) << m.slug;
  }
  const FusedPlan plan = plan_of("conv-transpose3d-max-max-sum");
  EXPECT_NEAR(predict(lower(plan, options, Chip()), Rates()), 0.346e-3, 0.1 * 0.346e-3);
}

}  // namespace
}  // namespace upweave::cuda
