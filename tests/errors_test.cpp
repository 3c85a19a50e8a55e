// Every error through C: a status, a sentence that names the parameter and its value, an output left alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "five_functions.h"
#include "graph/graph.h"

#ifdef __SANITIZE_ADDRESS__  // memory that cannot be had is a null pointer there, too
extern "C" UPWEAVE_PUBLIC const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace upweave {
namespace {

using testing::Function;
using testing::functions;

constexpr size_t kBuffer = 1 << 16;  // floats: larger than any tensor here

// The buffers of one call, the output filled with a pattern.
struct Call {
  explicit Call(const Function& function) : f(function), sizes(f.size_values), reals(f.real_values) {
    output.assign(kBuffer, -777.0f);
    for (size_t i = 0; i < f.tensors.size(); ++i) {
      data.emplace_back(kBuffer, 0.25f + 0.001f * static_cast<float>(i));
      pointers.push_back(data.back().data());
    }
  }
  size_t& operator[](const std::string& name) { return f.size(sizes, name); }
  upweave_status operator()() { return f.call(f.f32, pointers, output_pointer(), sizes, reals); }
  void* output_pointer() { return null_output ? nullptr : output.data(); }
  bool untouched() const {
    return std::all_of(output.begin(), output.end(), [](float v) { return v == -777.0f; });
  }

  const Function& f;
  std::vector<size_t> sizes;
  std::vector<double> reals;
  std::vector<std::vector<float>> data;
  std::vector<const void*> pointers;
  std::vector<float> output;
  bool null_output = false;
};

void expect_error(Call& call, const std::vector<std::string>& words,
                  upweave_status status = UPWEAVE_INVALID) {
  EXPECT_EQ(call(), status) << call.f.slug;
  const std::string sentence = upweave_last_error();
  for (const std::string& word : words)
    EXPECT_NE(sentence.find(word), sentence.npos) << word << " not in: " << sentence;
  EXPECT_TRUE(call.untouched()) << sentence;
}

bool has(const Function& f, const std::string& name) {
  return std::find(f.sizes.begin(), f.sizes.end(), name) != f.sizes.end();
}

bool is_padding(const std::string& name) { return name.find("padding") != name.npos; }

class Errors : public ::testing::TestWithParam<Function> {};

TEST_P(Errors, TheCaseItselfWorks) {
  Call call(GetParam());
  ASSERT_EQ(call(), UPWEAVE_OK) << upweave_last_error();
  EXPECT_FALSE(call.untouched());
}

TEST_P(Errors, ASizeOfZero) {
  for (const std::string& name : GetParam().sizes) {
    if (name == "batch_size" || is_padding(name)) continue;
    Call call(GetParam());
    call[name] = 0;
    expect_error(call, {name + " is 0"});
  }
}

TEST_P(Errors, ASizeBeyond64Bits) {
  for (const std::string& name : GetParam().sizes) {
    Call call(GetParam());
    call[name] = SIZE_MAX;
    expect_error(call, {name + " is 18446744073709551615"});
  }
}

TEST_P(Errors, AnExtentThatOverflows) {
  for (const std::string& name : GetParam().sizes) {
    Call call(GetParam());
    call[name] = INT64_MAX - 1;
    if (name == "groups") {  // accepted, and without effect
      EXPECT_EQ(call(), UPWEAVE_OK) << upweave_last_error();
      continue;
    }
    expect_error(call, {name.substr(0, name.find_last_of('_')), "9223372036854775806"});
  }
}

TEST_P(Errors, AProductThatOverflows) {
  Call call(GetParam());
  call["batch_size"] = call["in_channels"] = size_t{1} << 40;
  expect_error(call, {"batch_size 1099511627776", "in_channels 1099511627776"});
  Call kernel(GetParam());
  kernel["in_channels"] = kernel["out_channels"] = size_t{1} << 31;
  kernel["kernel_h"] = 8;
  expect_error(kernel, {"kernel", "out_channels 2147483648"});
}

TEST_P(Errors, OutputPaddingNotBelowStride) {
  for (const char* axis : {"d", "h", "w"}) {
    const std::string name = std::string("output_padding_") + axis;
    if (!has(GetParam(), name)) continue;
    Call call(GetParam());
    call[name] = call[std::string("stride_") + axis];
    expect_error(call, {name + " is " + std::to_string(call[name]), std::string("stride_") + axis});
  }
}

TEST_P(Errors, AnOutputExtentBelowOne) {
  for (const char* axis : {"d", "h", "w"}) {
    const std::string name = std::string("padding_") + axis;
    if (!has(GetParam(), name)) continue;
    Call call(GetParam());
    call[name] = 100;
    expect_error(call, {"padding", "100"});
  }
}

TEST_P(Errors, ANullPointer) {
  for (size_t i = 0; i < GetParam().tensors.size(); ++i) {
    Call call(GetParam());
    call.pointers[i] = nullptr;
    expect_error(call, {GetParam().tensors[i] + " is a null pointer"});
  }
  Call call(GetParam());
  call.null_output = true;
  expect_error(call, {"output is a null pointer"});
}

TEST_P(Errors, MemoryThatCannotBeHad) {
  Call call(GetParam());
  call["in_channels"] = call["out_channels"] = size_t{1} << 15;
  call["kernel_h"] = call["kernel_w"] = 8;  // 2^36 weights and more, which must be packed before anything
  call["batch_size"] = 1;
  if (has(call.f, "num_groups")) call["num_groups"] = 1;
  for (size_t i = 0; i < call.pointers.size(); ++i) {  // far apart, and never followed
    call.pointers[i] = reinterpret_cast<const void*>((i + 1) << 60);
  }
  expect_error(call, {"cannot be had"}, UPWEAVE_MEMORY);
}

TEST_P(Errors, AnEmptyBatchIsNone) {
  Call call(GetParam());
  call["batch_size"] = 0;
  EXPECT_EQ(call(), UPWEAVE_OK) << upweave_last_error();
  EXPECT_TRUE(call.untouched());
  call.pointers[0] = nullptr;  // an empty tensor needs no address
  call.null_output = true;
  EXPECT_EQ(call(), UPWEAVE_OK) << upweave_last_error();
  call.pointers[1] = nullptr;  // the kernel is not empty
  expect_error(call, {"kernel is a null pointer"});
}

TEST_P(Errors, AnEmptyBatchStillHasItsErrors) {
  Call call(GetParam());
  call["batch_size"] = 0;
  call["stride_h"] = 0;
  expect_error(call, {"stride_h is 0"});
}

TEST_P(Errors, OutputOverInput) {
  Call call(GetParam());
  const std::vector<float> before = call.data[0];
  EXPECT_EQ(call.f.call(call.f.f32, call.pointers, call.data[0].data() + 1, call.sizes, call.reals),
            UPWEAVE_INVALID);
  EXPECT_NE(std::string(upweave_last_error()).find("output overlaps input"), std::string::npos);
  EXPECT_EQ(call.data[0], before);
}

TEST_P(Errors, HaveNoMemoryOfTheirOwn) {  // a call that fails leaves no trace in the next one
  Call bad(GetParam());
  bad["stride_w"] = 0;
  expect_error(bad, {"stride_w is 0"});
  Call good(GetParam());
  EXPECT_EQ(good(), UPWEAVE_OK);
}

INSTANTIATE_TEST_SUITE_P(Five, Errors, ::testing::ValuesIn(functions()), [](const auto& param) {
  std::string name = param.param.slug;
  std::erase(name, '-');
  return name;
});

const Function& function(const std::string& part) {
  for (const Function& f : functions()) {
    if (f.slug.find(part) != f.slug.npos) return f;
  }
  throw std::runtime_error(part);
}

TEST(ErrorsOfOne, APooledExtentBelowOne) {
  Call max_max(
      function("max-max-sum"));  // depth 1, kernel 5, stride 2, padding 0: 5 values, 6 are one window
  max_max["depth"] = 1;
  max_max["padding_d"] = 0;
  expect_error(max_max, {"depth 1", "kernel_d 5"});
  Call average(function("clamp-softmax"));
  average["pool_kernel"] = 5;  // depth is 4
  expect_error(average, {"pool_kernel 5", "depth 4"});
  Call sum(function("sum-layernorm"));
  sum["height"] = 1;
  sum["kernel_h"] = 1;
  expect_error(sum, {"height 1", "kernel_h 1"});
}

TEST(ErrorsOfOne, ChannelsThatNumGroupsDoesNotDivide) {
  Call call(function("groupnorm"));
  call["num_groups"] = 4;
  expect_error(call, {"4", "6"});
}

TEST(ErrorsOfOne, StatisticsOverASingleValue) {
  Call call(function("groupnorm"));
  for (const char* name : {"batch_size", "height", "width", "kernel_h", "kernel_w", "stride_h", "stride_w"})
    call[name] = 1;
  for (const char* name : {"padding_h", "padding_w", "output_padding_h", "output_padding_w"}) call[name] = 0;
  expect_error(call, {"single value", "batch_size 1", "height 1"});
}

TEST(ErrorsOfOne, GroupsChangesNothing) {
  Call one(function("groupnorm")), other(function("groupnorm"));
  for (size_t t = 0; t < one.data.size(); ++t) {
    for (size_t i = 0; i < one.data[t].size(); ++i) {
      one.data[t][i] = other.data[t][i] = std::sin(static_cast<float>(i * 7 + t));
    }
  }
  one["groups"] = 1;
  other["groups"] = 1000;
  ASSERT_EQ(one(), UPWEAVE_OK);
  ASSERT_EQ(other(), UPWEAVE_OK);
  EXPECT_EQ(std::memcmp(one.output.data(), other.output.data(), kBuffer * sizeof(float)), 0);
}

// PyTorch's operators give NaN for each of these, wherever the scalar stands, so there is nothing to refuse.
TEST(ErrorsOfNone, AScalarThatIsNoNumber) {
  for (const char* slug : {"sum-layernorm", "scaling", "clamp-softmax"}) {
    for (size_t i = 0; i < Call(function(slug)).reals.size(); ++i) {
      Call call(function(slug));
      call.reals[i] = std::nan("");
      ASSERT_EQ(call(), UPWEAVE_OK) << slug << ": " << upweave_last_error();
      const Plan plan = Pipeline::parse(testing::text_of(call.f, call.sizes, call.reals))
                            .compile(testing::shapes_of(call.f, call.sizes), {.engine = Engine::kReference});
      for (int64_t at = 0; at < count(plan.output_shape()); ++at)
        EXPECT_TRUE(std::isnan(call.output[at])) << slug << ", element " << at;
    }
  }
}

TEST(ErrorsOfOne, ClampLimitsInTheWrongOrderAreNone) {  // everything becomes clamp_max: the softmax is flat
  Call call(function("clamp-softmax"));
  call.reals = {2, -1};
  ASSERT_EQ(call(), UPWEAVE_OK) << upweave_last_error();
  const Plan plan = Pipeline::parse(testing::text_of(call.f, call.sizes, call.reals))
                        .compile(testing::shapes_of(call.f, call.sizes), {.engine = Engine::kReference});
  const Shape& shape = plan.output_shape();
  const auto voxels = static_cast<float>(shape[2] * shape[3] * shape[4]);
  for (int64_t i = 0; i < count(shape); ++i)
    EXPECT_NEAR(call.output[i], call.data[2][0] / voxels, 1e-6f / voxels);
}

}  // namespace
}  // namespace upweave
