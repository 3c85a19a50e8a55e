// What the CPU engine takes beyond input, output and packed weights: 16 MiB a thread, whatever the batch.
#include <malloc.h>

#include "cpu_check.h"

namespace upweave::testing {
namespace {

constexpr int64_t kLimit = int64_t{16} << 20;  // a thread
constexpr int64_t kNoLimit = int64_t{1} << 60;

// A sanitizer touches pages of its own for every page of ours.
#ifdef __SANITIZE_ADDRESS__
#define SKIP_IF_SANITIZED() GTEST_SKIP() << "pages are no measure under a sanitizer"
#else
#define SKIP_IF_SANITIZED()
#endif

// Pages that a run brings in beyond what lies in input, output and packed weights.
int64_t extra_bytes(const std::string& text, const Shape& input, Dtype dtype, int threads, bool fuse = true) {
  auto status = [](const char* field) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(field, 0) == 0)
        return std::strtoll(line.c_str() + std::strlen(field), nullptr, 10) * 1024;
    }
    return 0LL;
  };
  mallopt(M_MMAP_THRESHOLD, 64 << 10);  // large blocks are new pages, not those that a run before has left
  malloc_trim(0);
  const Options options = {.dtype = dtype, .threads = threads};
  const auto plan = std::make_shared<const FusedPlan>(
      lower_to_plan(parse_text(text), {{"input", input}}, options, cpu_target(fuse)));
  const auto program = lower_to_program(plan, options);
  Rng rng(1);
  Data data = make_data(text, {{"input", input}}, dtype, rng, Values::kNormal);
  data.tensors.clear();
  std::vector<const void*> parameters;
  for (const std::string& name : parameter_names(plan->source))
    parameters.push_back(data.bytes.at(name).data());
  std::vector<char> output(static_cast<size_t>(count(visible_shape(plan->source)) * size_of(dtype)), 1);
  void* packed = program->allocate(program->packed_bytes());
  program->pack(parameters, packed, nullptr);
  void* workspace = program->allocate(program->workspace_bytes());
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from here
  const int64_t before = status("VmRSS:");
  program->run(packed, data.bytes.at("input").data(), output.data(), workspace, nullptr);
  const int64_t extra = status("VmHWM:") - before;
  program->release(packed);
  program->release(workspace);
  return extra;
}

struct Large {
  const char* text;
  Shape input;
};

// The upsampled tensor of each would be over 100 MiB.
const Large kLargeFive[] = {
    {"conv_transpose kernel 64 k3 s2 p1 op1 | add 1 | layer_norm channel | avg_pool 2 | gelu",
     {24, 4, 8, 16, 16}},
    {"conv_transpose kernel 64 k4 s2 p1 | layer_norm channel | gelu | mul 1.5", {24, 4, 8, 16, 16}},
    {"conv_transpose kernel conv_bias 64 k5 s2 p2 | max_pool 2 | max_pool 3 | sum channel",
     {24, 4, 8, 16, 16}},
    {"avg_pool 2 | conv_transpose kernel 64 k3 s2 p1 op1 | clamp 0 1 | softmax space | mul scale",
     {24, 4, 16, 32, 32}},
    {"conv_transpose kernel 64 k5 s1 p1 | batch_norm bn_weight bn_bias | tanh | max_pool 2 "
     "| group_norm 8 gn_weight gn_bias",
     {400, 4, 32, 32}},
};

void expect_within_limit(const Large& c, Dtype dtype) {
  for (const int threads : {1, 2}) {
    EXPECT_LE(extra_bytes(c.text, c.input, dtype, threads), threads * kLimit)
        << c.text << ", " << threads << " threads, dtype " << static_cast<int>(dtype);
  }
}

TEST(CpuMemory, FivePipelines) {
  SKIP_IF_SANITIZED();
  for (const Large& c : kLargeFive) {
    // The measure works: one pass an operation, all samples at once, needs more.
    cpu::set_scratch_limit_for_test(kNoLimit);
    EXPECT_GT(extra_bytes(c.text, c.input, Dtype::kF32, 1, false), 2 * kLimit) << c.text;
    cpu::set_scratch_limit_for_test(0);
    for (const Dtype dtype : kTypes) expect_within_limit(c, dtype);
  }
}

// The document's convolution, whose pooled values take 148 KB a sample in float32: 76 and 151 MB.
TEST(CpuMemory, BatchNormOfLargeBatches) {
  SKIP_IF_SANITIZED();
  for (const int64_t samples : {512, 1024}) {
    const Large c{
        "conv_transpose kernel 128 k5 s1 p1 | batch_norm bn_weight bn_bias | tanh | max_pool 2 "
        "| group_norm 8 gn_weight gn_bias",
        {samples, 4, 32, 32}};
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) expect_within_limit(c, dtype);
  }
}

// Values that wait for statistics of a sample or of the batch, at the output's resolution or at another.
TEST(CpuMemory, OtherNorms) {
  SKIP_IF_SANITIZED();
  for (const char* tail :
       {"instance_norm | gelu", "group_norm 8", "batch_norm", "batch_norm | gelu | batch_norm",
        "batch_norm as y | mean space as m | @y | sub @m", "group_norm 8 | max_pool 2 | tanh",
        "mean height | softmax channel", "instance_norm | max_pool 3 s2"}) {
    const std::string text = std::string("conv_transpose kernel 32 k3 s2 p1 op1 | ") + tail;
    for (const Dtype dtype : kTypes) expect_within_limit({text.c_str(), {80, 4, 32, 32}}, dtype);
  }
}

// A sample at a time keeps within the limit what one sample's values do not exceed; where they do, explain
// says so.
TEST(CpuMemory, ValuesInsideOnePass) {
  const char* text = "tanh | softmax space | max_pool 3 s1";
  const Options options = {.threads = 1};
  FusedPlan plan = lower_to_plan(parse_text(text), {{"input", {40, 16, 128, 128}}}, options);
  EXPECT_LE(plan.workspace.total(plan.part), kLimit);
  EXPECT_NE(explain(plan, options, {}).find("samples at a time"), std::string::npos);
  EXPECT_EQ(explain(plan, options, {}).find("allows itself"), std::string::npos);
  plan = lower_to_plan(parse_text(text), {{"input", {1, 32, 512, 512}}}, options);
  EXPECT_LE(plan.workspace.total(plan.part) - plan.workspace.values, kLimit);
  EXPECT_NE(explain(plan, options, {}).find("for the values take them"), std::string::npos);
}

// What a run may touch at all, of every pipeline that comes with the library: the documents' batches and
// larger ones.
TEST(CpuMemory, WorkspaceOfTheCatalog) {
  for (const CatalogEntry& entry : catalog()) {
    for (const int64_t times : {1, 8}) {
      Shapes shapes = entry.shapes;
      shapes.at("input")[0] *= times;
      for (auto& [name, shape] : shapes) {  // tensors as large as the output
        if (name != "input" && shape.size() == shapes.at("input").size() && name != "kernel" && shape[0] > 1)
          shape[0] *= times;
      }
      for (const Dtype dtype : kTypes) {
        for (const int threads : {1, 2}) {
          const Options options = {.dtype = dtype, .threads = threads};
          const auto plan = std::make_shared<const FusedPlan>(
              lower_to_plan(Pipeline::named(entry.slug).graph(), shapes, options));
          EXPECT_LE(static_cast<int64_t>(lower_to_program(plan, options)->workspace_bytes()),
                    threads * kLimit)
              << entry.slug << ", batch " << shapes.at("input")[0] << ", " << threads << " threads, dtype "
              << static_cast<int>(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace upweave::testing
