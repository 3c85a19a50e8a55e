// A GPU behind the entrances: the five functions, the five shared objects and plans, with pointers of either
// kind, streams, captured graphs and first calls. Where there is no GPU, each case is skipped with the
// engine's own sentence.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "cuda_device.h"
#include "five_case.h"
#include "graph/text.h"

namespace upweave {
namespace {

using testing::DeviceBlock;
using testing::driver_call;
using testing::FiveCase;
using testing::Function;

// A case's tensors on the GPU; the output poisoned, and so is what is behind it.
struct OnDevice {
  explicit OnDevice(FiveCase& c) : home(c), output(c.output.size()) {
    for (const auto& data : c.data) blocks.push_back(std::make_unique<DeviceBlock>(data.data(), data.size()));
    for (const auto& block : blocks) pointers.push_back(block->get());
  }
  void fetch() { output.read(home.output.data()); }

  FiveCase& home;
  std::vector<std::unique_ptr<DeviceBlock>> blocks;
  std::vector<const void*> pointers;
  DeviceBlock output;
};

class CudaFive : public ::testing::TestWithParam<Function> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(CudaFive, FunctionsTakeDevicePointers) {
  const Function& f = GetParam();
  for (const auto& [function, dtype] :
       {std::pair{f.f32, Dtype::kF32}, {f.f16, Dtype::kF16}, {f.bf16, Dtype::kBF16}}) {
    FiveCase c(f, dtype);
    OnDevice there(c);
    ASSERT_EQ(f.call(function, there.pointers, there.output.get(), f.size_values, f.real_values), UPWEAVE_OK)
        << upweave_last_error();
    there.fetch();
    c.check();
    const auto first = c.output;  // again, from the cache: the same bits
    there.output.poison();
    ASSERT_EQ(f.call(function, there.pointers, there.output.get(), f.size_values, f.real_values), UPWEAVE_OK);
    there.fetch();
    EXPECT_EQ(c.output, first);
  }
}

TEST_P(CudaFive, FunctionsStillTakeHostPointers) {  // now that the process has opened CUDA
  const Function& f = GetParam();
  FiveCase c(f, Dtype::kF32);
  ASSERT_EQ(f.call(f.f32, c.pointers, c.output.data(), f.size_values, f.real_values), UPWEAVE_OK)
      << upweave_last_error();
  c.check();
}

TEST_P(CudaFive, FunctionsRefuseAMixture) {
  const Function& f = GetParam();
  FiveCase c(f, Dtype::kF32);
  OnDevice there(c);
  std::vector<const void*> mixed = there.pointers;
  mixed[1] = c.pointers[1];
  EXPECT_EQ(f.call(f.f32, mixed, there.output.get(), f.size_values, f.real_values), UPWEAVE_INVALID);
  EXPECT_STREQ(upweave_last_error(),
               "kernel is in the host's memory and output in GPU 0's memory; they must be together");
  EXPECT_EQ(f.call(f.f32, there.pointers, c.output.data(), f.size_values, f.real_values), UPWEAVE_INVALID);
  there.fetch();
  for (const std::byte b : c.output) ASSERT_EQ(b, std::byte{0xff});  // nothing was written
}

TEST_P(CudaFive, AThreadThatHasUsedNoGpuMayCall) {
  const Function& f = GetParam();
  FiveCase c(f, Dtype::kF32);
  OnDevice there(c);
  upweave_status status = UPWEAVE_INTERNAL;
  std::string sentence;
  std::thread([&] {
    status = f.call(f.f32, there.pointers, there.output.get(), f.size_values, f.real_values);
    sentence = upweave_last_error();
  }).join();
  ASSERT_EQ(status, UPWEAVE_OK) << sentence;
  there.fetch();
  c.check();
}

TEST_P(CudaFive, SolutionsTakeEitherKind) {
  const Function& f = GetParam();
  const char* folder = std::getenv("UPWEAVE_BUILD");  // where the build was carried to
  const std::string path = std::string(folder ? folder : UPWEAVE_BINARY_DIR) + "/solutions/" + f.slug + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  void* solution = dlsym(library, "solution");
  ASSERT_NE(solution, nullptr) << dlerror();
  FiveCase c(f, Dtype::kF32);
  OnDevice there(c);
  f.call_solution(solution, there.pointers, there.output.get(), f.size_values, f.real_values);
  there.fetch();
  c.check();
  FiveCase here(f, Dtype::kF32);
  f.call_solution(solution, here.pointers, here.output.data(), f.size_values, f.real_values);
  here.check();
}

// The sizes of the documents: a first call leaves its kernels on disk, a second one takes them from there.
// What each costs is said, and measured by bench/gpu.
TEST_P(CudaFive, SecondCallsFindTheirKernels) {
  const Function& f = GetParam();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("upweave-first-{}", getpid());
  const char* before = std::getenv("UPWEAVE_CACHE");
  const std::string kept = before ? before : "";
  setenv("UPWEAVE_CACHE", folder.c_str(), 1);
  const auto entry = std::ranges::find(catalog(), f.slug, &CatalogEntry::slug);
  ASSERT_NE(entry, catalog().end());
  std::ptrdiff_t programs = 0;  // on disk
  for (const Precision precision : {Precision::kStrict, Precision::kFast}) {
    ++programs;
    double seconds[2];
    for (double& s : seconds) {
      const auto start = std::chrono::steady_clock::now();
      Pipeline::named(f.slug).compile(entry->shapes, {.engine = Engine::kCuda, .precision = precision});
      s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const std::filesystem::directory_iterator files(folder);
      EXPECT_EQ(std::distance(begin(files), end(files)), programs);
    }
    std::printf("%s %s: first call %.2f s, from the cache %.3f s\n", f.slug.c_str(),
                precision == Precision::kStrict ? "strict" : "fast", seconds[0], seconds[1]);
  }
  std::filesystem::remove_all(folder);
  before ? setenv("UPWEAVE_CACHE", kept.c_str(), 1) : unsetenv("UPWEAVE_CACHE");
}

INSTANTIATE_TEST_SUITE_P(All, CudaFive, ::testing::ValuesIn(testing::functions()), [](const auto& param) {
  std::string name = param.param.slug;
  std::erase(name, '-');
  return name;
});

// A plan with its tensors on the GPU.
class CudaPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    plan_ = std::make_unique<Plan>(
        Pipeline::parse("conv_transpose kernel 24 k3 s2 p1 op1 | layer_norm channel | avg_pool 2 | gelu")
            .compile({{"input", {2, 16, 6, 8, 8}}}, {.engine = Engine::kCuda}));
    std::mt19937 bits(3);
    for (const auto& [name, shape] : plan_->tensor_shapes()) {
      std::vector<float>& values = host_[name];
      for (int64_t i = 0; i < count(shape); ++i) values.push_back(static_cast<float>(bits()) * 0x1p-31f - 1);
      blocks_[name] = std::make_unique<DeviceBlock>(values.data(), values.size() * sizeof(float));
    }
    output_ =
        std::make_unique<DeviceBlock>(static_cast<size_t>(count(plan_->output_shape())) * sizeof(float));
    workspace_ = std::make_unique<DeviceBlock>(plan_->workspace_bytes());
    plan_->run(there(), output_->get(), workspace_->get());
    expected_ = output_->read();
    ASSERT_NE(expected_, std::vector<char>(expected_.size(), static_cast<char>(0xff)));
    output_->poison();
    workspace_->poison();
  }

  Tensors there(bool with_input = true) const {
    Tensors result;
    for (const auto& [name, block] : blocks_) {
      if (name != "input" || with_input) result[name] = block->get();
    }
    return result;
  }
  const void* input() const { return blocks_.at("input")->get(); }

  std::unique_ptr<Plan> plan_;
  std::map<std::string, std::vector<float>> host_;
  std::map<std::string, std::unique_ptr<DeviceBlock>> blocks_;
  std::unique_ptr<DeviceBlock> output_, workspace_;
  std::vector<char> expected_;
};

TEST_F(CudaPlan, WeightsArePackedOnceOrInEveryCall) {
  const Weights weights = plan_->pack(there(false));
  plan_->run(weights, input(), output_->get(), workspace_->get());
  EXPECT_EQ(output_->read(), expected_);
  Tensors from_host;  // parameters are packed from wherever they are
  for (const auto& [name, values] : host_) {
    if (name != "input") from_host[name] = values.data();
  }
  output_->poison();
  plan_->run(plan_->pack(from_host), input(), output_->get());
  EXPECT_EQ(output_->read(), expected_);
}

TEST_F(CudaPlan, ScratchOfItsOwnIsInTheStreamsOrder) {
  void* stream = nullptr;
  driver_call("cuStreamCreate", &stream, 1u);  // one that does not wait for the default stream
  for (int i = 0; i < 3; ++i) {
    output_->poison();
    plan_->run(there(), output_->get(), nullptr, stream);
    EXPECT_EQ(output_->read(), expected_);
  }
  driver_call("cuStreamDestroy_v2", stream);
}

// While a stream is captured, the driver refuses to synchronise and to allocate: what can be captured does
// neither, and what the graph writes was launched on that stream.
TEST_F(CudaPlan, ARunCanBeCaptured) {
  const Weights weights = plan_->pack(there(false));
  void *stream = nullptr, *graph = nullptr, *executable = nullptr;
  driver_call("cuStreamCreate", &stream, 1u);
  for (const bool pack : {false, true}) {
    driver_call("cuStreamBeginCapture_v2", stream, 0);  // globally: no thread may do such a thing
    if (pack) {
      plan_->run(there(), output_->get(), workspace_->get(), stream);
    } else {
      plan_->run(weights, input(), output_->get(), workspace_->get(), stream);
    }
    driver_call("cuStreamEndCapture", stream, &graph);
    output_->poison();
    workspace_->poison();
    EXPECT_NE(output_->read(), expected_);
    driver_call("cuGraphInstantiateWithFlags", &executable, graph, 0ull);
    driver_call("cuGraphLaunch", executable, stream);
    driver_call("cuStreamSynchronize", stream);
    EXPECT_EQ(output_->read(), expected_);
    driver_call("cuGraphExecDestroy", executable);
    driver_call("cuGraphDestroy", graph);
  }
  driver_call("cuStreamDestroy_v2", stream);
}

TEST_F(CudaPlan, RunsTakeNoMemory) {
  const Weights weights = plan_->pack(there(false));
  plan_->run(weights, input(), output_->get(), workspace_->get());
  size_t before = 0, after = 1, total = 0;
  // Other programs on the GPU may take some meanwhile, but not each time.
  for (int attempt = 0; attempt < 10 && before != after; ++attempt) {
    driver_call("cuMemGetInfo_v2", &before, &total);
    for (int i = 0; i < 50; ++i) plan_->run(weights, input(), output_->get(), workspace_->get());
    driver_call("cuMemGetInfo_v2", &after, &total);
  }
  EXPECT_EQ(before, after);
}

TEST_F(CudaPlan, HostPointersAreRefused) {
  const Weights weights = plan_->pack(there(false));
  std::vector<float> host(output_->bytes() / sizeof(float));
  const auto sentence = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kInvalid);
      return error.what();
    }
    return "";
  };
  const auto names = [](const std::string& said, const std::string& what) {
    return said.starts_with(what + " is at ") &&
           said.find("not in the memory of the plan's GPU") != said.npos;
  };
  const void* here = host_["input"].data();
  EXPECT_TRUE(names(sentence([&] { plan_->run(weights, here, output_->get()); }), "input"));
  EXPECT_TRUE(names(sentence([&] { plan_->run(weights, input(), host.data()); }), "output"));
  alignas(64) static char scratch[64];
  EXPECT_TRUE(names(sentence([&] { plan_->run(weights, input(), output_->get(), scratch); }), "workspace"));
  EXPECT_EQ(output_->read(), std::vector<char>(output_->bytes(), static_cast<char>(0xff)));
}

TEST_F(CudaPlan, OtherThreadsMayRunIt) {
  const Weights weights = plan_->pack(there(false));
  std::vector<std::unique_ptr<DeviceBlock>> outputs;
  std::vector<std::thread> threads;
  std::vector<std::string> said(4);
  for (size_t i = 0; i < said.size(); ++i) outputs.push_back(std::make_unique<DeviceBlock>(output_->bytes()));
  for (size_t i = 0; i < said.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int n = 0; n < 20; ++n) plan_->run(weights, input(), outputs[i]->get());
      } catch (const Error& error) {
        said[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < said.size(); ++i) {
    EXPECT_EQ(said[i], "");
    EXPECT_EQ(outputs[i]->read(), expected_);
  }
}

}  // namespace
}  // namespace upweave
