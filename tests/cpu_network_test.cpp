// Networks of several convolutions on the CPU engine, against the reference with its bounds: what lies
// between them channels last, what their heads take, and what several readers want.
#include "cpu_check.h"
#include "random_network.h"

namespace upweave::testing {
namespace {

std::string launches(const std::string& text, const Shape& input) {
  Rng rng(1);
  const Data data = make_data(text, {{"input", input}}, Dtype::kF32, rng, Values::kNormal);
  std::vector<std::string> notes;
  run_cpu(data, Dtype::kF32, 2, Algorithm::kDirect, true, &notes);
  std::string said;
  for (const std::string& note : notes) said += note + "\n";
  return said;
}

int64_t count_of(const std::string& text, const std::string& word) {
  int64_t n = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++n;
  return n;
}

void check_all(const std::string& text, const Shape& input) {
  for (const Dtype dtype : kTypes) {
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kAuto})
      check(text, {{"input", input}}, 3, dtype, Values::kNormal, true, algorithm);
  }
}

// Channels that fill vectors, that do not, and too few to be padded.
TEST(CpuNetwork, NormsAreAppliedOnTheWayIn) {
  for (const char* const norm :
       {"instance_norm", "instance_norm w s", "group_norm 4 w s", "batch_norm w s", "batch_norm"}) {
    for (const char* const channels : {"32", "20", "24", "4"}) {
      const std::string text = std::string("conv_transpose a ") + channels + " k3 s1 p1 | " + norm +
                               " | leaky_relu 0.01 | conv_transpose b c 18 k3 s1 p1 | sigmoid";
      check_all(text, {2, 5, 6, 9});
      check_all(text, {2, 3, 3, 4, 5});
    }
  }
  const std::string two = launches(
      "conv_transpose a 32 k3 s1 p1 | instance_norm | leaky_relu 0.01 | conv_transpose b 32 k3 s1 p1",
      {1, 32, 9, 9});
  EXPECT_EQ(count_of(two, "tiles of"), 2) << two;
}

TEST(CpuNetwork, HeadsMeetOtherValues) {
  const std::string start = "conv_transpose a 32 k3 s1 p1 | relu as x | conv_transpose b 32 k3 s1 p1 | ";
  for (const char* const between :
       {"instance_norm | add @x | relu", "add @x", "add @x | instance_norm | mul v",
        "instance_norm | mul @x | add @x", "instance_norm | maximum @x | max_pool 2",
        "instance_norm | avg_pool 2x3 | add v", "min_pool 3 s2", "mean space as m | @x | add @m",
        "instance_norm as y | relu | add @y", "sub @x", "prelu v"}) {
    check_all(start + between + " | conv_transpose c 17 k3 s1 p1", {2, 5, 8, 9});
    check_all(start + between + " | conv_transpose c 32 k3 s2 | tanh", {1, 16, 9, 8});
  }
}

// What another operation, a slab pass, a mean of a convolution or the caller wants too.
TEST(CpuNetwork, SeveralReaders) {
  for (const char* const text :
       {"conv_transpose a 32 k3 s1 p1 as x | conv_transpose b 32 k3 s1 p1 | add @x | softmax space",
        "conv_transpose a 32 k3 s1 p1 | instance_norm as x | conv_transpose b 32 k3 s1 p1 | instance_norm | "
        "add @x",
        "conv_transpose a 32 k3 s1 p1 | instance_norm | relu out x | conv_transpose b 16 k3 s1 p1 | relu",
        "conv_transpose a 32 k3 s1 p1 as x | softmax space | conv_transpose b 32 k1 s1 | mul @x | layer_norm "
        "channel",
        "conv_transpose a 32 k3 s1 p1 as x | logsumexp channel as l | @x | sub @l | conv_transpose b 20 k3 "
        "s1",
        "conv_transpose a 32 k3 s1 p1 as x | layer_norm last | conv_transpose b 32 k3 s1 p1 | add @x",
        "conv_transpose a 32 k3 s1 p1 as x | conv_transpose b 8 k3 s1 p1 | mean space as m | @x | "
        "conv_transpose c 8 "
        "k3 s1 p1 | sub @m"}) {
    check_all(text, {2, 6, 7, 9});
    check_all(text, {1, 16, 40});
  }
}

TEST(CpuNetwork, CatIsReadWhereItsPartsAre) {
  const std::string parts[] = {"32", "20", "5"};
  for (const std::string& first : parts) {
    for (const std::string& second : parts) {
      check_all(
          "conv_transpose a " + first + " k3 s1 p1 | instance_norm | relu as x | conv_transpose b " + second +
              " k3 s1 p1 | instance_norm | leaky_relu 0.1 | cat @x | conv_transpose c 24 k3 s1 p1 | relu",
          {2, 6, 7, 9});
    }
  }
  check_all("relu as x | conv_transpose a 16 k3 s1 p1 as y | cat @x @y | conv_transpose b 16 k3 s1 p1",
            {1, 7, 5, 6, 7});
  const std::string three = launches(
      "conv_transpose a 32 k3 s1 p1 as x | conv_transpose b 32 k3 s1 p1 | relu | cat @x | conv_transpose c "
      "16 k3 s1 p1",
      {1, 32, 9, 9});
  EXPECT_EQ(count_of(three, "tiles of"), 3) << three;
  EXPECT_EQ(count_of(three, "on its own"), 0) << three;
}

TEST(CpuNetwork, SpecialValues) {
  const std::string text =
      "conv_transpose a 20 k3 s1 p1 as x | instance_norm | relu | conv_transpose b 20 k3 s1 p1 | add @x | "
      "tanh";
  for (const Values values : {Values::kLargeMean, Values::kSpecial, Values::kExtreme, Values::kSubnormal})
    check(text, {{"input", {2, 6, 7, 9}}}, 5, Dtype::kF32, values);
}

TEST(CpuNetwork, Random) {
  const uint64_t first = first_seed();
  for (int i = 0; i < cases(400); ++i) {
    const RandomNetwork network = random_network(first + static_cast<uint64_t>(i));
    check(network.text, {{"input", network.input}}, first + static_cast<uint64_t>(i), kTypes[i % 3],
          Values::kNormal, i % 7 != 0 || network.text.find("cat") != std::string::npos,
          i % 2 ? Algorithm::kAuto : Algorithm::kDirect);
    if (::testing::Test::HasFailure()) break;
  }
}

// The same through tiny tiles and small caches.
TEST(CpuNetwork, SmallTiles) {
  cpu::set_cache_bytes_for_test(20000);
  for (int i = 0; i < cases(100); ++i) {
    const RandomNetwork network = random_network(static_cast<uint64_t>(5000 + i));
    check(network.text, {{"input", network.input}}, static_cast<uint64_t>(i), kTypes[i % 3]);
    if (::testing::Test::HasFailure()) break;
  }
  cpu::set_cache_bytes_for_test(0);
}

}  // namespace
}  // namespace upweave::testing
