#pragma once
// Random networks of convolutions: chains with norms and activations between them, residuals, values that
// several readers want, concatenations and further outputs. A case is known by its seed alone.
#include <random>
#include <string>
#include <vector>

#include "random_pipeline.h"

namespace upweave::testing {

struct RandomNetwork {
  std::string text;
  Shape input;
};

// All values keep the input's extents, so that any two of the same channels can be added and any two joined.
inline RandomNetwork random_network(uint64_t seed) {
  Random random(seed);
  const size_t spatial = static_cast<size_t>(random.integer(1, 3));
  RandomNetwork network;
  network.input = {random.integer(1, 3), random.pick<int64_t>({3, 16, 20, 32})};
  for (size_t a = 0; a < spatial; ++a)
    network.input.push_back(random.integer(spatial == 3 ? 3 : 5, spatial == 1 ? 70 : 9));
  struct Value {
    std::string name;
    int64_t channels;
  };
  std::vector<Value> values;  // that later stages may take up again
  int64_t channels = network.input[1];
  int names = 0;
  auto say = [&](const std::string& stage) { network.text += (network.text.empty() ? "" : " | ") + stage; };
  auto name = [&](const char* letter) { return letter + std::to_string(names++); };
  const int64_t convolutions = random.integer(2, 4);
  for (int64_t i = 0; i < convolutions; ++i) {
    if (!values.empty() && random.chance(0.3)) {
      const Value& other =
          values[static_cast<size_t>(random.integer(0, static_cast<int64_t>(values.size()) - 1))];
      if (channels + other.channels <= 80) {
        if (random.chance(0.3)) say("pad 1 | crop 1:-1");
        say("cat @" + other.name);
        channels += other.channels;
      }
    }
    if (random.chance(0.25)) {
      say(random.pick<std::string>({"pad 1 | crop 1:-1", "pad 1 value=2 | crop :-2",
                                    "pad 1 reflect | crop 1:-1", "upsample 2 nearest | avg_pool 2",
                                    "upsample 2 linear | max_pool 2"}));
    }
    const int64_t out = random.pick<int64_t>({15, 16, 24, 32});
    const std::string bias = random.chance(0.4) ? name("bias") + " " : "";
    say("conv_transpose " + name("kernel") + " " + bias + std::to_string(out) +
        random.pick<std::string>({" k3 s1 p1", " k1 s1", " k3 s1 p1", " k5 s1 p2"}));
    channels = out;
    if (random.chance(0.5)) {
      say(random.pick<std::string>({"instance_norm", "batch_norm",
                                    "instance_norm " + name("weight") + " " + name("shift"),
                                    channels % 4 == 0 ? "group_norm 4" : "instance_norm"}));
    }
    if (random.chance(0.3)) {
      for (const Value& value : values) {
        if (value.channels != channels) continue;
        say(random.pick<std::string>({"add @", "mul @", "maximum @"}) + value.name);
        break;
      }
    }
    if (random.chance(0.7)) {
      say(random.pick<std::string>({"leaky_relu 0.1", "relu", "sigmoid", "mul 0.5", "add " + name("vector"),
                                    "tanh", "prelu " + name("slope")}));
    }
    if (random.chance(0.2)) say("max_pool 1");
    if (random.chance(0.5)) {
      values.push_back({name("value"), channels});
      network.text += " as " + values.back().name;
    }
  }
  return network;
}

// A longer chain, for plans: `channels` of every value, of the input too; skips and several readers.
inline std::string random_chain(uint64_t seed, int convolutions, int channels) {
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
