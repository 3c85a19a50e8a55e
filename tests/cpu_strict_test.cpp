// Strict means strict under transforms: data as people have it, through whole pipelines, each element inside
// the bound on direct sums; and what `verify` calls right.
#include "cpu_check.h"
#include "data_kinds.h"
#include "fresh_seed.h"
#include "random_pipeline.h"

namespace upweave::testing {
namespace {

// Replaces a tensor's elements; `f` gets the index.
template <class F>
void fill(Data& data, const std::string& name, Dtype dtype, F f) {
  Tensor& tensor = data.tensors.at(name);
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    store_element(data.bytes.at(name).data(), dtype, static_cast<int64_t>(i), f(i));
    tensor.data[i] = load_element(data.bytes.at(name).data(), dtype, static_cast<int64_t>(i));
  }
}

void fill_kind(Data& data, DataKind kind, Dtype dtype, Rng& rng) {
  const Shape& shape = data.tensors.at("input").shape;
  std::array<int64_t, 3> space = {1, 1, 1};
  for (size_t a = 2; a < shape.size(); ++a) space[a + 5 - shape.size() - 2] = shape[a];
  std::vector<double> all;
  for (int64_t n = 0; n < shape[0]; ++n) {
    const std::vector<double> sample = make_kind(kind, shape[1], space, rng);
    all.insert(all.end(), sample.begin(), sample.end());
  }
  fill(data, "input", dtype, [&](size_t i) { return all[i]; });
}

double worst_error(const Tensor& truth, const std::vector<char>& output) {
  double worst = 0;
  for (size_t i = 0; i < truth.data.size(); ++i) {
    const double got = load_element(output.data(), Dtype::kF32, static_cast<int64_t>(i));
    worst = std::max(worst, std::fabs(got - truth.data[i]));
  }
  return worst;
}

bool transforms(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    if (note.find("Toom-Cook") != std::string::npos) return true;
  }
  return false;
}

// Behind a norm that blows up what is left of an empty background, where no bound says much: the error itself
// is that of direct sums.
TEST(CpuStrict, AnEmptyBackgroundStaysEmptyBehindANorm) {
  Rng rng(fresh_seed());
  std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
  const std::string text = "conv_transpose kernel 64 k4 s2 p1 | layer_norm channel | gelu | mul 1";
  for (const double peak : {255.0, 3000.0}) {
    Data data = make_data(text, {{"input", {1, 32, 8, 16, 16}}}, Dtype::kF32, rng, Values::kNormal);
    fill_kind(data, DataKind::kImage, Dtype::kF32, rng);
    fill(data, "input", Dtype::kF32, [&](size_t i) { return data.tensors.at("input").data[i] * peak / 255; });
    fill(data, "kernel", Dtype::kF32, [&](size_t i) { return data.tensors.at("kernel").data[i] / 45; });
    std::vector<std::string> notes;
    const std::vector<char> chosen = run_cpu(data, Dtype::kF32, 2, Algorithm::kAuto, true, &notes);
    ASSERT_TRUE(transforms(notes));
    const Tensor want = evaluate(data.graph, data.tensors);
    const double error = worst_error(want, chosen),
                 direct = worst_error(want, run_cpu(data, Dtype::kF32, 2, Algorithm::kDirect));
    EXPECT_LE(error, 8 * direct) << "direct sums err by " << direct;
    compare(data, chosen, Dtype::kF32);
  }
}

TEST(CpuStrict, LargeOffsetsWithManyTapsOutside) {
  Rng rng(fresh_seed());
  const std::string text =
      "conv_transpose kernel 33 k5 s2x2x1 p0x0x2 op1x0x0 | add 1 | layer_norm channel | avg_pool 2 | gelu";
  for (int n = 0; n < 5; ++n) {
    Data data = make_data(text, {{"input", {2, 17, 2, 2, 4}}}, Dtype::kF32, rng, Values::kLargeMean);
    const std::vector<char> chosen = run_cpu(data, Dtype::kF32, 2, Algorithm::kAuto);
    const Tensor want = evaluate(data.graph, data.tensors);
    EXPECT_LE(worst_error(want, chosen),
              8 * worst_error(want, run_cpu(data, Dtype::kF32, 2, Algorithm::kDirect)));
    compare(data, chosen, Dtype::kF32);
  }
}

// Every kind of data, the convolution's own values and what a norm makes of them, in float32 and some other
// element type.
TEST(CpuStrict, DataAsPeopleHaveIt) {
  Rng rng(fresh_seed());
  std::printf("UPWEAVE_TEST_SEED=%u\n", fresh_seed());
  const Named cases[] = {{"conv_transpose kernel 16 k4 s2 p1", {1, 24, 3, 6, 7}},
                         {"conv_transpose kernel 16 k5 s2 p2 op1 | relu", {1, 16, 3, 5, 5}},
                         {"conv_transpose kernel 40 k3 s1 p1 | tanh", {2, 32, 13, 14}},
                         {"conv_transpose kernel 48 k5 p1 | layer_norm channel", {1, 48, 12, 11}},
                         {"conv_transpose kernel 48 k4 s2 op1 | layer_norm channel | gelu", {2, 40, 9, 12}},
                         {"conv_transpose kernel 16 k3 s2 p1 op1 | instance_norm", {2, 24, 4, 4, 5}},
                         {"conv_transpose kernel 32 k9 s2 p4 | softmax channel", {2, 48, 40}}};
  int transformed = 0;
  for (const Named& named : cases) {
    for (const DataKind kind : kDataKinds) {
      for (const Dtype dtype : {Dtype::kF32, kTypes[rng() % 3]}) {
        SCOPED_TRACE(std::string(named.text) + ", " + name_of(kind) + ", dtype " +
                     std::to_string(static_cast<int>(dtype)));
        Data data = make_data(named.text, {{"input", named.input}}, dtype, rng, Values::kNormal);
        fill_kind(data, kind, dtype, rng);
        std::vector<std::string> notes;
        const std::vector<char> one = run_cpu(data, dtype, 1, Algorithm::kAuto, true, &notes);
        transformed += transforms(notes);
        compare(data, one, dtype);
        EXPECT_EQ(one, run_cpu(data, dtype, 3, Algorithm::kAuto)) << "3 threads";
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(transformed, 70);
}

// The same kinds of data through pipelines that are new in every run, of convolutions worth a transform.
TEST(CpuStrict, RandomPipelinesOfSuchData) {
  const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
  const bool light = effort && std::string(effort) == "light";
  const uint64_t first = fresh_seed(), cases = light ? 22 : 220;
  int transformed = 0;
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    Random rng(seed);
    const int64_t spatial = rng.integer(1, 3), longest = spatial == 1 ? 60 : spatial == 2 ? 14 : 6;
    Shape input = {rng.integer(1, 2), 8 * rng.integer(2, 5)};
    for (int64_t a = 0; a < spatial; ++a) input.push_back(rng.integer(longest / 2, longest));
    std::string text = fmt::format("conv_transpose kernel bias {} k{} s{} p{}", 8 * rng.integer(2, 6),
                                   rng.integer(3, 5), rng.integer(1, 2), rng.integer(0, 1));
    for (int64_t n = rng.integer(0, 3); n > 0; --n) {
      text += rng.pick<std::string>({" | layer_norm channel", " | layer_norm last", " | batch_norm",
                                     " | instance_norm", " | group_norm 4", " | gelu", " | tanh", " | relu",
                                     " | softmax channel", " | softmax space", " | mul 0.01", " | add 3",
                                     " | clamp -1 1"});
    }
    text += rng.pick<std::string>({"", "", " | avg_pool 2", " | max_pool 2"});
    const DataKind kind = kDataKinds[seed % std::size(kDataKinds)];
    const Dtype dtype = rng.chance(0.2) ? Dtype::kBF16 : Dtype::kF32;
    SCOPED_TRACE(text + " of " + to_string(input) + ", " + name_of(kind) + ", dtype " +
                 std::to_string(static_cast<int>(dtype)) + ", UPWEAVE_TEST_SEED=" + std::to_string(seed));
    Rng data_rng(seed);
    Data data = make_data(text, {{"input", input}}, dtype, data_rng, Values::kNormal);
    fill_kind(data, kind, dtype, data_rng);
    std::vector<std::string> notes;
    const std::vector<char> one = run_cpu(data, dtype, 1, Algorithm::kAuto, true, &notes);
    transformed += transforms(notes);
    compare(data, one, dtype);
    EXPECT_EQ(one, run_cpu(data, dtype, 3, Algorithm::kAuto)) << "3 threads";
    if (HasFailure()) return;
  }
  if (!light) {  // of 22, chance decides
    EXPECT_GT(transformed, static_cast<int>(cases) / 4);
  }
}

// Where no tap reaches, or only zeros are read, nothing comes out.
TEST(CpuStrict, ZerosAreExact) {
  Rng rng(fresh_seed());
  for (const char* text : {"conv_transpose kernel 32 k4 s2 op1", "conv_transpose kernel 32 k4 s2 op1 | relu",
                           "conv_transpose kernel 32 k2 s3 op2", "conv_transpose kernel 32 k3 p1"}) {
    Data data = make_data(text, {{"input", {1, 32, 12, 13}}}, Dtype::kF32, rng, Values::kNormal);
    fill_kind(data, DataKind::kMasked, Dtype::kF32, rng);
    const std::vector<char> got = run_cpu(data, Dtype::kF32, 2, Algorithm::kAuto);
    const Tensor want = evaluate(data.graph, data.tensors);
    for (size_t i = 0; i < want.data.size(); ++i) {
      if (want.data[i] != 0) continue;
      ASSERT_EQ(load_element(got.data(), Dtype::kF32, static_cast<int64_t>(i)), 0) << text << " " << i;
    }
  }
}

TEST(CpuStrict, ANanWeightStaysWhereItIs) {
  Rng rng(fresh_seed());
  Data data = make_data("conv_transpose kernel 16 k3 p1 | relu", {{"input", {1, 16, 16}}}, Dtype::kF32, rng,
                        Values::kNormal);
  fill(data, "kernel", Dtype::kF32,
       [&](size_t i) { return i == 0 ? NAN : data.tensors.at("kernel").data[i]; });
  compare(data, run_cpu(data, Dtype::kF32, 1, Algorithm::kAuto), Dtype::kF32);
}

// What float32 keeps finite stays finite: instance and batch norms give zeros there, for their variance
// overflows.
TEST(CpuStrict, LargeValuesBeforeANormAreNotNan) {
  Rng rng(fresh_seed());
  for (const char* norm : {"instance_norm", "batch_norm", "softmax channel", "max channel"}) {
    Data data = make_data(std::string("conv_transpose kernel 16 k3 p1 | ") + norm, {{"input", {2, 16, 16}}},
                          Dtype::kF32, rng, Values::kNormal);
    fill(data, "input", Dtype::kF32, [&](size_t i) { return data.tensors.at("input").data[i] * 1e36; });
    fill(data, "kernel", Dtype::kF32, [&](size_t i) { return data.tensors.at("kernel").data[i] / 7; });
    const std::vector<char> got = run_cpu(data, Dtype::kF32, 1, Algorithm::kAuto);
    for (size_t i = 0; i < got.size() / 4; ++i)
      ASSERT_TRUE(std::isfinite(load_element(got.data(), Dtype::kF32, static_cast<int64_t>(i)))) << norm;
  }
}

TEST(Verdict, SaysWhenAnInfinityIsRight) {
  const double inf = INFINITY;
  EXPECT_EQ(fraction_of_bound(inf, inf, 0, Dtype::kF32), 0);
  EXPECT_EQ(fraction_of_bound(NAN, NAN, 0, Dtype::kF32), 0);
  EXPECT_EQ(fraction_of_bound(inf, 3.5e38, 1, Dtype::kF32), 0);
  EXPECT_EQ(fraction_of_bound(inf, 1e38, 1, Dtype::kF32), inf);
  EXPECT_EQ(fraction_of_bound(-inf, 3.5e38, 1, Dtype::kF32), inf);
  EXPECT_EQ(fraction_of_bound(1, inf, 1, Dtype::kF32), inf);
  EXPECT_EQ(fraction_of_bound(1, NAN, 1, Dtype::kF32), inf);
  EXPECT_EQ(fraction_of_bound(NAN, 1, 1, Dtype::kF32), inf);
  EXPECT_EQ(fraction_of_bound(1.5, 1, 1, Dtype::kF32), 0.5);
  EXPECT_EQ(fraction_of_bound(0, 0, 0, Dtype::kF32), 0);
  EXPECT_EQ(fraction_of_bound(1e-40, 0, 0, Dtype::kF32), inf);
}

// A number beyond float32's range is infinite or zero, for the engine and for the judge.
TEST(Verdict, NumbersBeyondFloat32AreWhatEnginesSee) {
  Rng rng(2);
  for (const char* text : {"mul 1e39", "mul -1e39 | relu", "div 1e-50", "add 1e39", "minimum 1e300",
                           "clamp -1e39 1e39", "leaky_relu 1e-60", "mul 1e39 | mul 0"}) {
    SCOPED_TRACE(text);
    Data data = make_data(text, {{"input", {1, 4, 40}}}, Dtype::kF32, rng, Values::kNormal);
    fill(data, "input", Dtype::kF32,
         [&](size_t i) { return i % 3 ? data.tensors.at("input").data[i] * 1e-6 : 0; });
    const std::vector<char> got = run_cpu(data, Dtype::kF32, 1);
    const Graph source = lower_to_plan(data.graph, tensor_shapes(data.graph), {}).source;
    EXPECT_LE(judge(truth(source, data.tensors, {}), got.data(), Dtype::kF32).worst, 1);
  }
}

// Beside a vanishing variance a norm may be off by what it can be at most, and no more.
TEST(Verdict, ANormNeverHasAnEndlessBound) {
  Rng rng(1);
  Data data = make_data("conv_transpose kernel 8 k3 | layer_norm channel eps=0", {{"input", {1, 4, 6}}},
                        Dtype::kF32, rng, Values::kNormal);
  fill(data, "kernel", Dtype::kF32, [](size_t) { return 0.1; });
  fill(data, "kernel", Dtype::kF32, [&](size_t i) { return i == 5 ? 0.1000001 : 0.1; });
  const Tensor want = truth(data.graph, data.tensors, {});
  for (size_t i = 0; i < want.data.size(); ++i) {
    if (!std::isfinite(want.data[i])) continue;
    EXPECT_LE(want.err[i], 2 * std::sqrt(8.0) * 1.001);
  }
}

}  // namespace
}  // namespace upweave::testing
