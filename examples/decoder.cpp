// A decoder's block in C++: upsample, normalise over channels, activate. Weights are packed once, then many
// inputs go through.
//
//   g++ -std=c++20 examples/decoder.cpp -lupweave -o decoder && ./decoder
#include <cstdio>
#include <upweave/upweave.hpp>
#include <vector>

int main() try {
  const auto pipeline = upweave::Builder()
                            .conv_transpose("kernel", {.stride = {2}, .padding = {1}})
                            .layer_norm("channel")
                            .gelu()
                            .build();
  std::printf("pipeline: %s\n", pipeline.text().c_str());

  const upweave::Plan plan = pipeline.compile({{"input", {2, 32, 8, 16, 16}}, {"kernel", {32, 64, 4, 4, 4}}});
  std::vector<float> kernel(32 * 64 * 4 * 4 * 4), x(2 * 32 * 8 * 16 * 16), y(1);
  for (size_t i = 0; i < kernel.size(); ++i) kernel[i] = 0.01f * static_cast<float>(i % 13) - 0.06f;
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.1f * static_cast<float>(i % 17) - 0.8f;
  size_t n = 1;
  std::printf("output:  ");
  for (const int64_t extent : plan.output_shape()) {
    std::printf(" %lld", static_cast<long long>(extent));
    n *= static_cast<size_t>(extent);
  }
  y.resize(n);

  const upweave::Weights weights = plan.pack({{"kernel", kernel.data()}});
  for (int step = 0; step < 3; ++step) plan.run(weights, x.data(), y.data());
  std::printf("\ny[0..3]:   %.4f %.4f %.4f %.4f\n", y[0], y[1], y[2], y[3]);
  std::printf("passes:   %d instead of %d\n", plan.cost().passes, plan.cost().unfused_passes);
  return 0;
} catch (const upweave::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
