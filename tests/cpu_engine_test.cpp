// The CPU engine against the reference, within the bound that the reference derives for every element.
#include "cpu_check.h"
#include "eager.h"
#include "fresh_seed.h"
#include "random_network.h"
#include "random_pipeline.h"

namespace upweave::testing {
namespace {

TEST(CpuEngine, FivePipelines) {
  for (const Named& c : kFive) {
    for (const Dtype dtype : kTypes) {
      for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kAuto}) {
        check(c.text, {{"input", c.input}}, 1, dtype, Values::kNormal, true, algorithm);
      }
    }
    check(c.text, {{"input", c.input}}, 2, Dtype::kF32, Values::kNormal, false);
  }
}

// A random pipeline: stages that do not fit the shape they meet are left out by trying again.
std::string random_text(Rng& rng, size_t spatial) {
  auto pick = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  auto axes = [&](int64_t lo, int64_t hi) {
    std::string s;
    for (size_t a = 0; a < spatial; ++a) s += (a ? "x" : "") + std::to_string(pick(lo, hi));
    return s;
  };
  int names = 0;
  auto name = [&] { return "t" + std::to_string(names++); };
  auto stage = [&]() -> std::string {
    static const char* kPlain[] = {"relu",
                                   "tanh",
                                   "sigmoid",
                                   "swish",
                                   "mish",
                                   "hardswish",
                                   "gelu",
                                   "gelu tanh",
                                   "leaky_relu 0.2",
                                   "elu",
                                   "elu 0.5",
                                   "softplus",
                                   "softplus beta=2 threshold=5",
                                   "sin",
                                   "abs",
                                   "abs | add 0.5 | sqrt",
                                   "clamp -1 0.5",
                                   "hardtanh -1 1",
                                   "add 0.5",
                                   "mul -2",
                                   "div 4",
                                   "sub 1.25",
                                   "minimum 0.25",
                                   "maximum -0.5",
                                   "layer_norm channel",
                                   "instance_norm",
                                   "softmax channel",
                                   "softmax space",
                                   "logsumexp channel",
                                   "logsumexp space",
                                   "sum channel",
                                   "mean channel",
                                   "max channel",
                                   "min channel",
                                   "sum space",
                                   "mean space",
                                   "max space",
                                   "min space",
                                   "mean width",
                                   "sum width",
                                   "max width",
                                   "layer_norm last",
                                   "group_norm 2",
                                   "batch_norm",
                                   "min height",
                                   "mean depth"};
    switch (pick(0, 9)) {
      case 0:
        return "avg_pool " + axes(1, 3);
      case 1:
        return "max_pool " + axes(1, 3);
      case 2:
        return "max_pool " + axes(1, 3) + " s" + axes(1, 3);
      case 3: {
        static const char* kOps[] = {"add", "sub", "mul", "minimum", "maximum"};
        static const char* kShapes[] = {":channel", ":scalar", ":full", ""};
        return std::string(kOps[pick(0, 4)]) + " " + name() + kShapes[pick(0, 3)];
      }
      case 4:
        return "batch_norm " + name() + " " + name();
      case 5:
        return "layer_norm channel " + name() + " " + name();
      default:
        return kPlain[static_cast<size_t>(pick(0, std::size(kPlain) - 1))];
    }
  };
  std::string text;
  auto append = [&](const std::string& s) { text += (text.empty() ? "" : " | ") + s; };
  if (pick(0, 3) == 0) append(stage());
  if (pick(0, 7) > 0) {
    const int64_t groups = pick(0, 3) == 0 ? 2 : 1;
    std::string conv = "conv_transpose kernel";
    if (pick(0, 1)) conv += " bias";
    append(conv + " " + std::to_string(groups * pick(1, 20)) + " k" + axes(1, 4) + " s" + axes(1, 3) + " p" +
           axes(0, 2) + " d" + axes(1, 2) + " g" + std::to_string(groups));
  }
  const int64_t stages = pick(0, 5);
  bool labelled = false;
  for (int64_t i = 0; i < stages; ++i) {
    append(stage());
    if (!labelled && pick(0, 3) == 0) {
      text += " as y";
      labelled = true;
    } else if (labelled && pick(0, 2) == 0) {
      append(pick(0, 1) ? "add @y" : "mul @y");
    }
  }
  return text.empty() ? "relu" : text;
}

int effort() {
  const char* value = std::getenv("UPWEAVE_TEST_EFFORT");
  return value && std::strcmp(value, "light") == 0 ? 60 : 600;
}

void check_random(uint64_t seed) {
  Rng rng(seed);
  const size_t spatial = 1 + rng() % 3;
  for (int attempt = 0; attempt < 200; ++attempt) {
    Shape input = {1 + static_cast<int64_t>(rng() % 3), 2 * (1 + static_cast<int64_t>(rng() % 10))};
    for (size_t a = 0; a < spatial; ++a)
      input.push_back(1 + static_cast<int64_t>(rng() % (spatial == 3 ? 6 : 12)));
    const std::string text = random_text(rng, spatial);
    try {
      const Graph graph = infer(parse_text(text), {{"input", input}});
      if (count(graph[graph.output].shape) > 200000) continue;
    } catch (const Error&) {
      continue;
    }
    static const Values kValues[] = {Values::kNormal, Values::kNormal, Values::kSpecial};
    const Dtype dtype = kTypes[seed % 3];
    const bool fuse = seed % 4 != 0;
    EXPECT_NO_THROW(check(text, {{"input", input}}, seed, dtype, kValues[seed / 3 % 3], fuse))
        << text << ", seed " << seed;
    return;
  }
  FAIL() << "no valid pipeline from seed " << seed;
}

TEST(CpuEngine, RandomPipelines) {
  uint64_t first = 1000;
  if (const char* given = std::getenv("UPWEAVE_SEED")) first = std::strtoull(given, nullptr, 10);
  const uint64_t last = std::getenv("UPWEAVE_SEED") ? first + 1 : first + static_cast<uint64_t>(effort());
  for (uint64_t seed = first; seed < last; ++seed) check_random(seed);
}

TEST(CpuEngine, RandomPipelinesOnEveryInstructionSet) {
  for_each_target([](int64_t) {
    for (uint64_t seed = 5000; seed < 5040; ++seed) check_random(seed);
  });
}

// With next to no cache every sample is many tiles and its input many waves, and 16-bit pipelines are sliced:
// borders, remainders and the combination of shares.
TEST(CpuEngine, ManySmallTiles) {
  for (const int64_t bytes : {1000, 20000}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes of cache");
    cpu::set_cache_bytes_for_test(bytes);
    cpu::set_last_level_bytes_for_test(bytes);
    for (const Named& c : kFive) {
      for (const Dtype dtype : kTypes) check(c.text, {{"input", c.input}}, 10, dtype);
      check(c.text, {{"input", c.input}}, 11, Dtype::kF32, Values::kNormal, true, Algorithm::kAuto);
      check(c.text, {{"input", c.input}}, 12, Dtype::kF32, Values::kLargeMean);
      check(c.text, {{"input", c.input}}, 13, Dtype::kF32, Values::kSpecial);
    }
    for (uint64_t seed = 7000; seed < 7000 + static_cast<uint64_t>(effort()) / 6; ++seed) check_random(seed);
  }
  cpu::set_cache_bytes_for_test(0);
  cpu::set_last_level_bytes_for_test(0);
}

// Where a 16-bit output cannot hold what lies between passes, blocks of channels are run one after the other:
// with the bits that all of them at once, and any number of threads, would have given.
TEST(CpuEngine, Slices) {
  const char* heads[] = {"conv_transpose kernel 64 k3 s2 p1 op1", "conv_transpose kernel 48 k4 s2 p1",
                         "relu | conv_transpose kernel bias 64 k2 s2"};
  const char* tails[] = {"clamp 0 1 | softmax space | mul scale",
                         "softmax space",
                         "instance_norm weight bias2 | gelu",
                         "add shift | instance_norm | leaky_relu 0.1",
                         "max_pool 2 | softmax space",
                         "group_norm 8",
                         "add T:full | softmax space"};
  int sliced = 0;
  for (const std::string head : heads) {
    for (const std::string tail : tails) {
      for (const bool direct : {false, true}) {
        const std::string text = head + " | " + tail;
        SCOPED_TRACE(text);
        const Dtype dtype = direct ? Dtype::kF16 : Dtype::kBF16;
        const Algorithm algorithm = direct ? Algorithm::kDirect : Algorithm::kAuto;
        Rng rng(77);
        const Data data = make_data(text, {{"input", {2, 24, 2, 12, 12}}}, dtype, rng, Values::kNormal);
        const std::vector<char> whole = run_cpu(data, dtype, 2, algorithm);
        if (direct) compare(data, whole, dtype);
        cpu::set_last_level_bytes_for_test(160000);
        for (const int threads : {1, 2}) {
          std::vector<std::string> notes;
          EXPECT_EQ(run_cpu(data, dtype, threads, algorithm, true, &notes), whole) << threads << " threads";
          sliced += notes.front().find("at a time") != std::string::npos;
        }
        cpu::set_last_level_bytes_for_test(0);
      }
    }
  }
  EXPECT_GE(sliced, 30);  // so that this is about slices
}

// Values of a network share memory when they are not alive together, and take each other's place.
TEST(CpuEngine, NetworksShareMemory) {
  for (int i = 0; i < cases(24); ++i) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(i);
    const std::string text = random_chain(seed, 2 + i % 5, 4);
    for (const Dtype dtype : kTypes) {
      SCOPED_TRACE(fmt::format("UPWEAVE_SEED={} dtype {}\n{}", seed, static_cast<int>(dtype), text));
      Rng rng(seed);
      const int64_t width = i % 2 ? 8 : 7;  // whole vectors, which are written in place, and others
      const Data data = make_data(text, {{"input", {3, 4, 6, width}}}, dtype, rng, Values::kNormal);
      const std::vector<char> whole = run_cpu(data, dtype, 2);
      compare(data, whole, dtype);
      EXPECT_EQ(run_cpu(data, dtype, 1), whole);
      cpu::set_scratch_limit_for_test(1);  // a sample at a time
      EXPECT_EQ(run_cpu(data, dtype, 2), whole);
      cpu::set_scratch_limit_for_test(0);
    }
  }
}

// Where values between passes take too much memory, a few samples are run at a time, and what a batch norm
// cannot keep is computed again: with the bits that all samples at once would have given.
TEST(CpuEngine, MicroBatches) {
  const char* head = "conv_transpose kernel 24 k3 s2 p1 | ";
  const char* tails[] = {"batch_norm weight bias | tanh | max_pool 2 | group_norm 8",
                         "batch_norm",
                         "batch_norm | gelu | batch_norm weight bias",
                         "max_pool 2 | batch_norm as y | mean space as m | @y | sub @m",
                         "batch_norm | softmax space",
                         "instance_norm | gelu",
                         "group_norm 4 | mean space",
                         "batch_norm | conv_transpose second 8 k2 s2 | batch_norm"};
  const bool light = effort() < 600;
  int kept = 0, again = 0;
  for (const std::string tail : tails) {
    for (const int64_t samples : {5, 8}) {
      for (const Dtype dtype : kTypes) {
        SCOPED_TRACE(tail + ", " + std::to_string(samples) + " samples, dtype " +
                     std::to_string(static_cast<int>(dtype)));
        Rng rng(5);
        const Data data =
            make_data(head + tail, {{"input", {samples, 6, 9, 10}}}, dtype, rng, Values::kNormal);
        const std::vector<char> whole = run_cpu(data, dtype, 2);
        compare(data, whole, dtype);
        for (int64_t limit = 1; limit < 500000; limit += light ? 250000 : 20000) {
          cpu::set_scratch_limit_for_test(limit);
          for (const int threads : {1, 2}) {
            std::vector<std::string> notes;
            EXPECT_EQ(run_cpu(data, dtype, threads, Algorithm::kDirect, true, &notes), whole)
                << threads << " threads, limit " << limit << ": " << notes.front();
            if (notes.front().find("samples at a time") == std::string::npos) continue;
            const std::string all = "passes of " + std::to_string(samples) + " of them are kept";
            ++(notes.front().find(all) != std::string::npos ? kept : again);
          }
        }
        cpu::set_scratch_limit_for_test(0);
      }
    }
  }
  EXPECT_GE(kept, light ? 0 : 5);  // so that this is about micro-batches, of both kinds
  EXPECT_GE(again, 50);
}

// Where a mean of a convolution is subtracted from it, or from another mean, what is left is as exact as one
// operation at a time gives it: by direct sums and by transforms, whose products differ.
TEST(CpuEngine, DifferencesKeepNoRounding) {
  Rng rng(fresh_seed());
  const auto pick = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  for (const char* const tail : kDifferences) {
    for (int n = 0; n < (effort() < 600 ? 2 : 8); ++n) {
      const size_t spatial = static_cast<size_t>(pick(1, 3));
      // Of two channels a layer norm is a sign: where they meet, how far anybody is off is luck.
      const std::string conv = fmt::format("conv_transpose kernel bias {} k{} s{} p{}", 2 * pick(3, 9),
                                           pick(2, 5), pick(1, 2), pick(0, 1));
      Shape input = {pick(2, 4), pick(1, 20)};
      for (size_t a = 0; a < spatial; ++a) input.push_back(pick(3, 9));
      const std::string text = fmt::format("{} | {}", conv, tail);
      Data data = make_data(text, {{"input", input}}, Dtype::kF32, rng, Values::kNormal);
      std::vector<double>& x = data.tensors.at("input").data;
      for (size_t i = 0; i < x.size(); ++i) {
        store_element(data.bytes.at("input").data(), Dtype::kF32, static_cast<int64_t>(i), x[i] + 8);
        x[i] = load_element(data.bytes.at("input").data(), Dtype::kF32, static_cast<int64_t>(i));
      }
      Data convolution = data;  // alone, by direct sums
      convolution.graph = infer(parse_text(conv), {{"input", input}});
      const Tensor exact = evaluate(convolution.graph, data.tensors);
      for (const auto& [algorithm, precision] : {std::pair{Algorithm::kDirect, Precision::kStrict},
                                                 {Algorithm::kAuto, Precision::kStrict},
                                                 {Algorithm::kAuto, Precision::kFast}}) {
        const bool fast = precision == Precision::kFast;
        if (fast) {
          for (const auto& [name, tensor] : as_tf32(data.tensors)) {
            for (size_t i = 0; i < tensor.data.size(); ++i)
              store_element(convolution.bytes[name].data(), Dtype::kF32, static_cast<int64_t>(i),
                            tensor.data[i]);
          }
        }
        const Tensor theirs =
            load_tensor(run_cpu(convolution, Dtype::kF32, 2).data(), Dtype::kF32, exact.shape);
        const std::vector<char> result = run_cpu(data, Dtype::kF32, 2, algorithm, true, nullptr, precision);
        const Errors errors =
            errors_of(data.graph, data.tensors, exact, theirs, fast ? 2 : 8,
                      [&](int64_t i) { return load_element(result.data(), Dtype::kF32, i); });
        EXPECT_LE(errors.largest, errors.allowed)
            << text << " of " << to_string(input) << (fast ? ", fast" : "")
            << ", UPWEAVE_TEST_SEED=" << fresh_seed();
      }
    }
  }
}

// Values and moments given out beside the result, of any pipeline, at once and in micro-batches of the batch.
TEST(CpuEngine, GivesOutMore) {
  const uint64_t first = fresh_seed();
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(effort()) / 4; ++seed) {
    const RandomPipeline pipeline = random_pipeline(seed, {.elements = 5000});
    Random rng(seed);
    const std::string text = with_outputs(pipeline.graph, rng);
    // An exp of an exp says nothing of its neighbours: its bound is infinite.
    Rng data_rng(seed);
    const Data data =
        make_data(text, tensor_shapes(pipeline.graph), kTypes[seed / 3 % 3], data_rng, Values::kNormal);
    const Rounding rounding;
    if (std::ranges::any_of(evaluate_outputs(data.graph, data.tensors, &rounding), [](const Tensor& y) {
          return std::ranges::any_of(y.err, [](double e) { return !std::isfinite(e); });
        }))
      continue;
    cpu::set_scratch_limit_for_test(seed % 3 == 0 ? 1 : 0);
    SCOPED_TRACE("UPWEAVE_TEST_SEED=" + std::to_string(seed));
    EXPECT_NO_THROW(check(text, tensor_shapes(pipeline.graph), seed, kTypes[seed / 3 % 3], Values::kNormal,
                          seed % 4 != 0, seed % 2 ? Algorithm::kAuto : Algorithm::kDirect))
        << text;
  }
  cpu::set_scratch_limit_for_test(0);
}

// Skips at the output's resolution and at their own, one sample for all, behind statistics of the batch: at
// once and in parts of the batch.
TEST(CpuEngine, SeveralInputs) {
  const Shape x = {5, 6, 7, 8}, skip = {5, 24, 14, 16}, gain = {1, 24, 14, 16}, channel = {5, 24, 1, 1};
  const std::pair<const char*, Shapes> all[] = {
      {"input x skip | conv_transpose kernel bias 24 k4 s2 p1 | add @skip | gelu",
       {{"x", x}, {"skip", skip}}},
      {"input x skip | conv_transpose kernel bias 24 k4 s2 p1 | batch_norm w b | mul @skip | instance_norm",
       {{"x", x}, {"skip", skip}}},
      {"input x gain | conv_transpose kernel 24 k4 s2 p1 | instance_norm | mul @gain | softmax channel",
       {{"x", x}, {"gain", gain}}},
      {"input x s | conv_transpose kernel 24 k4 s2 p1 | instance_norm | mul @s | relu",
       {{"x", x}, {"s", channel}}},
      {"input x s | avg_pool 2 | conv_transpose kernel 24 k4 s2 p1 | batch_norm | tanh out y | sub @s",
       {{"x", x}, {"s", channel}}},
      {"input x skip | conv_transpose kernel 24 k4 s2 p1 as y | @skip | relu | conv_transpose other 24 k3 s1 "
       "p1 "
       "| add @y | layer_norm channel | max_pool 2",
       {{"x", x}, {"skip", skip}}},
      {"input x one | @one | tanh as t | @x | conv_transpose kernel 24 k4 s2 p1 | add @t | batch_norm",
       {{"x", x}, {"one", gain}}},
      {"input x y | add @y | conv_transpose kernel 20 k3 s2 | group_norm 4", {{"x", x}, {"y", x}}},
  };
  for (const auto& [text, shapes] : all) {
    for (const Dtype dtype : kTypes) {
      for (const int64_t limit : {0, 1}) {
        cpu::set_scratch_limit_for_test(limit);
        check(text, shapes, 5, dtype, Values::kNormal, true, Algorithm::kAuto);
      }
    }
    check(text, shapes, 6, Dtype::kF32, Values::kNormal, false);
  }
  cpu::set_scratch_limit_for_test(0);
}

// A sum along one axis that leaves as it is and meets a value of all of them: read once for each.
TEST(CpuEngine, GivesOutWhatIsBroadcast) {
  for (const char* const fold : {"sum height", "max depth", "mean width", "min width"}) {
    for (const Dtype dtype : kTypes) {
      check(std::string("conv_transpose kernel bias 3 k3 s3 as y | softmax space | ") + fold +
                " out z | mul @y as v | moments batch out stats | @v",
            {{"input", {3, 2, 3, 4, 8}}}, 4, dtype);
    }
  }
}

// The batch's statistics beside a batch norm: float32 in every element type, from the norm's own sweep.
TEST(CpuEngine, GivesOutStatistics) {
  for (const char* const tail : {"moments batch out stats | @c | batch_norm w b | tanh | max_pool 2",
                                 "mul 2 as d | moments batch out stats | @d | batch_norm w b | mean space",
                                 "moments instance out stats | @c | instance_norm | relu",
                                 "moments group 4 out stats | @c | group_norm 4 | gelu"}) {
    for (const Dtype dtype : kTypes) {
      for (const int64_t limit : {0, 1}) {
        cpu::set_scratch_limit_for_test(limit);
        check(std::string("conv_transpose kernel bias 24 k4 s2 p1 as c | ") + tail, {{"input", {5, 6, 7, 8}}},
              3, dtype, Values::kLargeMean, true, Algorithm::kAuto);
      }
    }
  }
  cpu::set_scratch_limit_for_test(0);
}

}  // namespace
}  // namespace upweave::testing
