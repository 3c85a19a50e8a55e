#pragma once
// Networks: several convolutions in a row, norms and activations between them, skips, values with several
// readers. All keep the extents, so that any two values can be added.
#include <random>
#include <string>

#include "base/error.h"

namespace upweave::testing {

// `channels` of every value; the input has them too.
inline std::string random_network(uint64_t seed, int convolutions, int channels) {
  std::mt19937_64 rng(seed);
  std::string text;
  int labels = 0;
  const auto stage = [&](const std::string& s) { text += (text.empty() ? "" : " | ") + s; };
  for (int i = 0; i < convolutions; ++i) {
    const bool point = rng() % 4 == 0;
    stage(fmt::format("conv_transpose kernel{} {} {}", i, channels, point ? "k1" : "k3 p1"));
    static const char* const kNorms[] = {"instance_norm", "group_norm 2", "batch_norm", "layer_norm channel"};
    if (rng() % 4 != 0) stage(kNorms[rng() % 4]);
    static const char* const kActs[] = {"leaky_relu 0.1", "gelu", "tanh"};
    if (rng() % 4 != 0) stage(kActs[rng() % 3]);
    if (rng() % 2 == 0) text += fmt::format(" as skip{}", labels++);
    if (labels > 1 && rng() % 2 == 0) stage(fmt::format("add @skip{}", rng() % (labels - 1)));
  }
  return text;
}

}  // namespace upweave::testing
