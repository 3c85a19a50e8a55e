// conv_transpose of ones with a 3x3 kernel of ones gives 9 away from the border; the padding cuts the border
// off.
#include <cstdio>
#include <upweave/upweave.hpp>
#include <vector>

int main() {
  const auto pipeline = upweave::Pipeline::parse("conv_transpose kernel p2 | mul 0.5");
  const auto plan = pipeline.compile({{"input", {1, 1, 6, 6}}, {"kernel", {1, 1, 3, 3}}});
  const std::vector<float> x(36, 1), k(9, 1);
  std::vector<float> y(16, 0);
  if (plan.output_shape() != upweave::Shape{1, 1, 4, 4}) return 1;
  plan.run({{"input", x.data()}, {"kernel", k.data()}}, y.data());
  for (const float v : y) {
    if (v != 4.5f) return 1;
  }
  try {  // an exception crosses the library's border as what it is
    upweave::Pipeline::parse("no_such_operation");
    return 1;
  } catch (const upweave::Error& error) {
    if (error.status() != upweave::Status::kInvalid) return 1;
  }
  std::printf("upweave %s\n", upweave::version());
  return 0;
}
