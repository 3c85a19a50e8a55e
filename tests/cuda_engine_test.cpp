// The CUDA engine against the reference, within the bound that the reference derives for every element. Where
// there is no GPU or no NVRTC, each case is skipped with the engine's own sentence.
#include <gtest/gtest.h>

#include <cstring>

#include "api/road.h"
#include "cuda_cases.h"
#include "cuda_device.h"

namespace upweave {
namespace {

using testing::Case, testing::DeviceBlock;

class CudaEngine : public ::testing::TestWithParam<Case> {};

TEST_P(CudaEngine, MatchesTheReference) {
  if (const std::string why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const Case& c = GetParam();
  const Graph graph = infer(parse_text(c.text), c.shapes);
  const testing::Data data = make_data(graph, c);
  const Options options = {.dtype = c.dtype, .engine = Engine::kCuda, .precision = c.precision};
  const auto plan = std::make_shared<const FusedPlan>(lower_to_plan(parse_text(c.text), c.shapes, options));
  const auto program = lower_to_program(plan, options);
  std::string said;
  for (const std::string& note : program->describe()) said += "\n  " + note;
  SCOPED_TRACE(c.text + " of " + to_string(graph[0].shape) + said);

  const size_t size = static_cast<size_t>(count(visible_shape(plan->source)) * size_of(c.dtype));
  std::vector<char> first;
  for (int round = 0; round < 2; ++round) {  // everything anew and poisoned; the bits must agree
    const DeviceBlock packed(program->packed_bytes()), workspace(program->workspace_bytes() + 64);
    const DeviceBlock output(size);
    std::map<std::string, DeviceBlock> inputs;
    std::vector<const void*> input_pointers;
    for (const std::string& name : input_names(plan->source)) {
      const std::vector<char>& bytes = data.bytes.at(name);
      input_pointers.push_back(inputs.try_emplace(name, bytes.data(), bytes.size()).first->second.get());
    }
    void* const outputs[] = {output.get()};
    std::vector<const void*> parameters;
    for (const std::string& name : parameter_names(plan->source))
      parameters.push_back(data.bytes.at(name).data());
    program->pack(parameters, packed.get(), nullptr);
    program->run(packed.get(), input_pointers.data(), outputs, workspace.get(), nullptr);
    const std::vector<char> result = output.read(), scratch = workspace.read();
    for (size_t i = 0; i < 64; ++i)
      ASSERT_EQ(static_cast<unsigned char>(scratch[program->workspace_bytes() + i]), 0xff);
    if (round == 0)
      first = result;
    else
      EXPECT_EQ(std::memcmp(first.data(), result.data(), size), 0) << "two runs differ";
  }

  expect_result(graph, data, c, first);
}

INSTANTIATE_TEST_SUITE_P(All, CudaEngine, ::testing::ValuesIn(testing::all_cases()), [](const auto& i) {
  return std::to_string(i.index) + "_" + testing::with(i.param);
});

}  // namespace
}  // namespace upweave
