// The five functions in all element types, and the five shared objects, held against the reference.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "five_case.h"

namespace upweave {
namespace {

using testing::Function;
using Case = testing::FiveCase;

class Five : public ::testing::TestWithParam<Function> {};

TEST_P(Five, FunctionsAgreeWithTheReference) {
  const Function& f = GetParam();
  for (const auto& [function, dtype] :
       {std::pair{f.f32, Dtype::kF32}, {f.f16, Dtype::kF16}, {f.bf16, Dtype::kBF16}}) {
    Case c(f, dtype);
    ASSERT_EQ(f.call(function, c.pointers, c.output.data(), f.size_values, f.real_values), UPWEAVE_OK)
        << upweave_last_error();
    c.check();
    const auto first = c.output;  // from the cache: the same bits
    ASSERT_EQ(f.call(function, c.pointers, c.output.data(), f.size_values, f.real_values), UPWEAVE_OK);
    EXPECT_EQ(c.output, first);
  }
}

TEST_P(Five, ThreadsMayCallThemAtOnce) {  // with more sizes than the cache keeps
  const Function& f = GetParam();
  const Case c(f, Dtype::kF32);
  const size_t elements = c.output.size() + (1 << 16);
  const auto call = [&](size_t extra, std::vector<std::byte>& output) {
    std::vector<size_t> sizes = f.size_values;
    f.size(sizes, "batch_size") = 1 + extra % 2;
    f.size(sizes, "padding_w") = 0;
    f.size(sizes, "stride_h") += extra / 2;
    output.assign(elements, std::byte{0xff});
    return f.call(f.f32, c.pointers, output.data(), sizes, f.real_values);
  };
  std::vector<std::vector<std::byte>> want(12);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(call(i, want[i]), UPWEAVE_OK) << upweave_last_error();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> output;
      for (size_t i = 0; i < 15; ++i) {
        const size_t which = (i * (t + 1) + t) % want.size();
        if (call(which, output) != UPWEAVE_OK || output != want[which]) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(Five, SolutionsAgreeWithTheReference) {
  const Function& f = GetParam();
  const std::string path = std::string(UPWEAVE_BINARY_DIR) + "/solutions/" + f.slug + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  void* solution = dlsym(library, "solution");
  ASSERT_NE(solution, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "upweave_version"), nullptr);  // it exports nothing else
  Case c(f, Dtype::kF32);
  f.call_solution(solution, c.pointers, c.output.data(), f.size_values, f.real_values);
  c.check();
}

TEST_P(Five, SolutionsSayWhatIsWrongAndLeaveTheOutputAlone) {
  const Function& f = GetParam();
  const std::string path = std::string(UPWEAVE_BINARY_DIR) + "/solutions/" + f.slug + ".so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  Case c(f, Dtype::kF32);
  const auto before = c.output;
  std::vector<size_t> sizes = f.size_values;
  f.size(sizes, "stride_w") = 0;
  ::testing::internal::CaptureStderr();
  f.call_solution(dlsym(library, "solution"), c.pointers, c.output.data(), sizes, f.real_values);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "upweave: stride_w is 0; it must be at least 1\n");
  EXPECT_EQ(c.output, before);
}

INSTANTIATE_TEST_SUITE_P(All, Five, ::testing::ValuesIn(testing::functions()), [](const auto& param) {
  std::string name = param.param.slug;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace upweave
