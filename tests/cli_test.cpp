// The command as a user meets it: exit codes, sentences, JSON, files that appear whole or not at all.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../cli/check.cpp"  // the comparison that verify stands on
#include "io/npy.h"

namespace upweave {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Result {
  int code;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(UPWEAVE_BINARY_DIR) / "cli-test" / info->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  static std::string slurp(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  Result run(const std::string& arguments, const std::string& before = "") const {
    const std::string out = path(".out"), err = path(".err");
    const int status =
        std::system((before + " '" UPWEAVE_CLI "' " + arguments + " >'" + out + "' 2>'" + err + "'").c_str());
    Result result{WEXITSTATUS(status), slurp(out), slurp(err)};
    fs::remove(out);
    fs::remove(err);
    return result;
  }

  // Fails with 2, nothing on stdout and one sentence on stderr that has `word` in it.
  void expect_error(const std::string& arguments, const std::string& word) const {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments << "\n" << r.out << r.err;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_TRUE(r.err.starts_with("upweave: ")) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_NE(r.err.find(word), std::string::npos) << word << " not in: " << r.err;
  }

  json expect_json(const std::string& arguments) const {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 0) << arguments << "\n" << r.err;
    EXPECT_EQ(r.err, "") << arguments;
    return json::parse(r.out, nullptr, false);
  }

  std::vector<float> write_wave(const std::string& name, const Shape& shape, float phase) const {
    std::vector<float> values(static_cast<size_t>(count(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(phase + 1.3f * static_cast<float>(i));
    write_npy(path(name), shape, Dtype::kF32, values.data());
    return values;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  static bool light() {
    const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
    return effort && std::string(effort) == "light";
  }

  fs::path dir_;
};

TEST_F(Cli, HelpTeachesByExample) {
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("--version").out, std::string("upweave ") + version() + "\n");
  for (const char* command : {"demo", "list", "explain", "run", "verify", "bench"}) {
    const Result r = run(std::string(command) + " --help");
    EXPECT_EQ(r.code, 0) << command;
    EXPECT_NE(r.out.find("Examples:"), std::string::npos) << command;
    EXPECT_EQ(r.err, "") << command;
  }
}

TEST_F(Cli, List) {
  const Result r = run("list");
  EXPECT_EQ(r.code, 0);
  for (const auto& entry : catalog()) EXPECT_NE(r.out.find(entry.slug), std::string::npos) << entry.slug;
  EXPECT_EQ(expect_json("list --json").size(), catalog().size());
  EXPECT_EQ(expect_json("list --operations --json").size(), vocabulary().size());
  EXPECT_NE(run("list --operations").out.find("conv_transpose"), std::string::npos);
}

TEST_F(Cli, ExplainNamesAndTexts) {
  const json five = expect_json("explain max-max-sum --engine reference --json");
  EXPECT_TRUE(five.is_object());
  const Result r =
      run("explain 'conv_transpose k 8 k3 s$s | relu' --set s=2,1 --input 2x3x4x5 --engine reference");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("s2x1"), std::string::npos);
  EXPECT_NE(r.out.find("2x8x9x7"), std::string::npos);
  expect_error("explain 'relu'", "--input is missing");
  expect_error("explain 'relu' --input 2x3xq", "--input is '2x3xq'");
  expect_error("explain 'relu | relo' --input 2x3x4", "column 8");
  expect_error("explain no-such-name", "no-such-name");
  expect_error("explain layernorm", "no operation");
  expect_error("explain max-max-sum --set strid=2", "'strid'");
  expect_error("explain max-max-sum --set stride", "--set is 'stride'");
  expect_error("explain max-max-sum --set stride_h=0", "stride_h is 0");
  expect_error("explain max-max-sum --shape kernel=32x64x5x5", "kernel");
  expect_error("explain max-max-sum --shape kernle=3", "'kernle'");
  expect_error("explain batchnorm-tanh-maxpool-groupnorm --set groups=0", "groups is 0");
}

TEST_F(Cli, VerifyEveryPipeline) {
  for (const auto& entry : catalog()) {
    if (light() && !entry.slug.starts_with("conv-transpose")) continue;
    for (const char* engine : {"reference", "cpu"}) {
      const json facts = expect_json("verify " + entry.slug + " --json --engine " + engine);
      EXPECT_EQ(facts["right"], true) << entry.slug << facts;
      EXPECT_LE(facts["worst"].get<double>(), 1) << entry.slug;
      EXPECT_GT(facts["elements"].get<int>(), 0) << entry.slug;
    }
  }
}

TEST_F(Cli, VerifyTheFiveInHalfPrecision) {
  for (const auto& entry : catalog()) {
    if (!entry.slug.starts_with("conv-transpose")) continue;
    for (const char* dtype : {"f16", "bf16"}) {
      const json facts = expect_json("verify " + entry.slug + " --json --seed 5 --dtype " + dtype);
      EXPECT_EQ(facts["right"], true) << entry.slug << facts;
    }
  }
}

TEST_F(Cli, VerifyIsTheSameTwice) {
  const std::string arguments = "verify max-max-sum --engine reference --json --seed 3";
  EXPECT_EQ(run(arguments).out, run(arguments).out);
  EXPECT_NE(run(arguments).out, run("verify max-max-sum --engine reference --json --seed 4").out);
}

TEST_F(Cli, VerifyKnowsThatValuesOverflow) {
  for (const char* engine : {"reference", "cpu"}) {
    const json facts = expect_json(std::string("verify 'add 1e39' --input 1x2x4 --json --engine ") + engine);
    EXPECT_EQ(facts["right"], true) << facts;
  }
}

TEST_F(Cli, ExplainPrintsEveryStage) {
  for (const char* engine : {"cpu", "cuda", "reference"}) {
    const Result r = run("explain batchnorm-tanh-maxpool-groupnorm --stages --engine " + std::string(engine));
    EXPECT_EQ(r.code, 0) << r.err;
    for (const std::string part : {"1. As written", "2. Rewritten by", "3. Plan: ", "pass 1, convolution %",
                                   "over the batch, from byte ", "4. Engine "})
      EXPECT_NE(r.out.find(part), std::string::npos) << part << " is not in\n" << r.out;
  }
  EXPECT_NE(run("explain --help").out.find("--stages"), std::string::npos);
  expect_error("explain max-max-sum --stages --json", "--stages");
}

TEST_F(Cli, LogsWhenAsked) {
  const std::string verify = "verify 'conv_transpose k 8 k3 s2 | relu' --input 1x3x4x5";
  EXPECT_EQ(run(verify, "env -u UPWEAVE_LOG").err, "");
  EXPECT_EQ(run(verify, "UPWEAVE_LOG=off").err, "");
  const Result info = run(verify, "UPWEAVE_LOG=info"), debug = run(verify, "UPWEAVE_LOG=debug");
  EXPECT_EQ(std::count(info.err.begin(), info.err.end(), '\n'), 2) << info.err;
  for (const char* part : {"upweave: planned in ", "compiled for cpu in "}) {
    EXPECT_NE(info.err.find(part), std::string::npos) << info.err;
    EXPECT_NE(debug.err.find(part), std::string::npos) << debug.err;
  }
  for (const char* part : {"inferred ", "rewrote ", "pass of ", "cpu: ", "packed ", "ran on cpu in "})
    EXPECT_NE(debug.err.find(part), std::string::npos) << debug.err;
  const Result odd = run(verify, "UPWEAVE_LOG=loud");
  EXPECT_EQ(odd.code, 0);
  EXPECT_EQ(odd.err, "upweave: UPWEAVE_LOG is 'loud'; it must be info, debug or off\n");
}

TEST_F(Cli, MistakesOfTheCommandLine) {
  expect_error("", "subcommand");
  expect_error("frobnicate", "frobnicate");
  expect_error("verify", "pipeline is required");
  expect_error("verify relu --input 1x1x4 --engine gpu", "--engine is 'gpu'");
  expect_error("verify relu --input 1x1x4 --dtype f8", "--dtype is 'f8'");
  expect_error("verify relu --input 1x1x4 --precision sloppy", "--precision is 'sloppy'");
  expect_error("verify relu --input 1x1x4 --algorithm fft", "--algorithm is 'fft'");
  expect_error("verify relu --input 1x1x4 --threads -3", "threads is -3");
  expect_error("verify relu --input 1x1x4 --dtype f64", "f64");
  expect_error("bench relu --input 1x1x4 --runs 0", "--runs is 0");
}

TEST_F(Cli, BenchAndDemoReportFacts) {
  const json bench = expect_json(
      "bench 'conv_transpose k 8 k3 s2 | relu' --input 1x4x8x8 --engine reference --runs 3 --json");
  EXPECT_GT(bench["seconds"].get<double>(), 0);
  EXPECT_LE(bench["worst"].get<double>(), 1);
  EXPECT_NE(run("bench 'conv_transpose k 8 k3 s2 | relu' --input 1x4x8x8 --engine reference --runs 1")
                .out.find("GFLOP/s"),
            std::string::npos);
}

TEST_F(Cli, DemoRunsTheFive) {
  if (light()) GTEST_SKIP() << "its sizes are for an optimised build";
  const json demo = expect_json("demo --json");
  ASSERT_EQ(demo.size(), 5u);
  for (const json& row : demo) EXPECT_EQ(row["right"], true) << row;
}

TEST_F(Cli, RunComputesWhatTheLibraryComputes) {
  const std::vector<float> x = write_wave("x.npy", {2, 3, 4, 5, 6}, 0),
                           k = write_wave("k.npy", {3, 4, 5, 3, 2}, 1), b = write_wave("b.npy", {4}, 2);
  const std::string arguments = "run max-max-sum --engine reference --input " + path("x.npy") +
                                " --param kernel=" + path("k.npy") + " --param conv_bias=" + path("b.npy") +
                                " --output " + path("y.npy");
  const Result r = run(arguments + " --set stride=2,2,3 --set padding=1 --set padding_h=0");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_NE(r.out.find("y.npy: 2x1x1x1x2 f32"), std::string::npos) << r.out;
  EXPECT_EQ(files(), (std::vector<std::string>{"b.npy", "k.npy", "x.npy", "y.npy"}));

  const Plan plan =
      Pipeline::named("conv-transpose3d-max-max-sum", {{"stride", "2x2x3"}, {"padding", "1x0x1"}})
          .compile({{"input", {2, 3, 4, 5, 6}}, {"kernel", {3, 4, 5, 3, 2}}}, {.engine = Engine::kReference});
  std::vector<float> want(static_cast<size_t>(count(plan.output_shape())));
  plan.run({{"input", x.data()}, {"kernel", k.data()}, {"conv_bias", b.data()}}, want.data());
  const NpyArray got = read_npy(path("y.npy"));
  EXPECT_EQ(got.shape, plan.output_shape());
  ASSERT_EQ(got.data.size(), want.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(got.data.data(), want.data(), got.data.size()), 0);

  const json facts = expect_json(arguments + " --set padding=1 --dtype bf16 --json");
  EXPECT_EQ(facts["dtype"], "bf16");
  EXPECT_EQ(read_npy(path("y.npy")).dtype, Dtype::kBF16);
  EXPECT_EQ(facts["shape"].get<Shape>(), read_npy(path("y.npy")).shape);
}

TEST_F(Cli, RunLeavesNothingBehindWhenItFails) {
  write_wave("x.npy", {2, 3, 4, 5}, 0);
  write_wave("k.npy", {3, 4, 3, 3}, 1);
  write_wave("wrong.npy", {5, 4, 3, 3}, 1);
  const std::string whole = slurp(path("x.npy"));
  std::ofstream(path("short.npy"), std::ios::binary) << whole.substr(0, whole.size() - 1);
  std::ofstream(path("text.npy")) << "hello";
  const std::string y = " --engine reference --output " + path("y.npy"),
                    text = "run 'conv_transpose kernel | relu' ";
  const std::string x = "--input " + path("x.npy"), k = " --param kernel=" + path("k.npy");
  const double eight = 8;
  write_npy(path("f64.npy"), {1, 1, 1, 1}, Dtype::kF64, &eight);
  expect_error(text + "--input " + path("f64.npy") + k + " --output " + path("y.npy"),
               "--dtype f32 converts");
  fs::remove(path("f64.npy"));
  expect_error(text + "--input " + path("none.npy") + k + y, "none.npy");
  expect_error(text + "--input " + path("short.npy") + k + y, "short.npy");
  expect_error(text + "--input " + path("text.npy") + k + y, "text.npy");
  expect_error(text + x + y, "kernel is missing");
  expect_error(text + x + k + k + y, "twice");
  expect_error(text + x + k + " --param bias=" + path("k.npy") + y, "bias");
  expect_error(text + x + " --param kernel=" + path("wrong.npy") + y, "kernel");
  expect_error(text + x + " --param kernel" + y, "--param is 'kernel'");
  expect_error(text + x + k, "--output is required");
  expect_error(text + x + k + " --engine reference --output " + path("no/such/y.npy"), "y.npy");
  EXPECT_EQ(files(), (std::vector<std::string>{"k.npy", "short.npy", "text.npy", "wrong.npy", "x.npy"}));

  std::ofstream(path("y.npy")) << "precious";
  expect_error(text + x + " --param kernel=" + path("wrong.npy") + y, "kernel");
  EXPECT_EQ(slurp(path("y.npy")), "precious");
}

TEST_F(Cli, AFullDiskIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  const int status = std::system("'" UPWEAVE_CLI "' list >/dev/full 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

// An error means that nothing was written: what cannot be said of an output is said before it appears.
TEST_F(Cli, NoOutputAppearsThatCannotBeReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  write_wave("x.npy", {1, 2, 4}, 0);
  for (const char* form : {"", " --json"}) {
    const std::string command = "'" UPWEAVE_CLI "' run relu --input '" + path("x.npy") + "' --output '" +
                                path("y.npy") + "'" + form + " >/dev/full 2>/dev/null";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2);
    EXPECT_EQ(files(), (std::vector<std::string>{"x.npy"}));
  }
}

// Fewer threads, or a sentence about memory: never OpenMP's own end, which exits with 1.
TEST_F(Cli, ThreadsThatCannotBeHadAreFewerThreads) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "sanitizers want all of the address space";
#endif
  write_wave("x.npy", {4, 8, 32, 32}, 0);
  write_wave("k.npy", {8, 8, 3, 3}, 1);
  const std::string command = "run 'conv_transpose kernel s2 | softmax space' --input '" + path("x.npy") +
                              "' --param kernel='" + path("k.npy") + "' --output '" + path("y.npy") + "'";
  ASSERT_EQ(run(command).code, 0);
  const std::string right = slurp(path("y.npy"));
  int ran = 0;
  for (int megabytes = 20; megabytes <= 400; megabytes += 12) {
    fs::remove(path("y.npy"));
    const Result r =
        run(command + " --threads 16", "ulimit -s 8192; ulimit -v " + std::to_string(megabytes * 1024) + ";");
    if (r.code == 127) continue;  // not even the libraries fit
    EXPECT_TRUE(r.code == 0 || r.code == 2) << megabytes << " MB: " << r.code << " " << r.err;
    if (r.code != 0) continue;
    EXPECT_EQ(slurp(path("y.npy")), right) << megabytes << " MB";
    ++ran;
  }
  EXPECT_GT(ran, 0);
  fs::remove(path("y.npy"));
  EXPECT_EQ(run(command + " --threads 100000").code, 0);
  EXPECT_EQ(slurp(path("y.npy")), right);
}

TEST_F(Cli, ErrorsAreOneShortLine) {
  const std::string strange = "relo\x1b[31m" + std::string(5000, 'z') + "\nsecond";
  for (const std::string& arguments :
       {"explain '" + strange + "' --input 1x1x4", "verify relu --input '" + strange + "'",
        "run relu --input '" + strange + "' --output y.npy",
        "explain relu --input 1x1x4 --shape '" + strange + "'",
        "explain relu --input 1x1x4 --set '" + strange + "=1'", "'" + strange + "'",
        "explain relu --input 1x1x4 --engine '" + strange + "'", "explain relu --'" + strange + "'"}) {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_LT(r.err.size(), 600u) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_EQ(r.err.find('\x1b'), std::string::npos) << r.err;
  }
}

TEST_F(Cli, ProgressIsForTerminalsOnly) {
  const std::string command = "verify max-max-sum --engine reference";
  EXPECT_EQ(run(command).err, "");
  EXPECT_EQ(run(command).out.find('\r'), std::string::npos);
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "no script(1) to make a terminal";
  const std::string shown = path("shown");
  std::system(
      ("script -qec \"'" UPWEAVE_CLI "' " + command + "\" /dev/null >'" + shown + "' </dev/null").c_str());
  EXPECT_NE(slurp(shown).find("running the reference"), std::string::npos) << slurp(shown);
}

TEST_F(Cli, ReadsEveryInput) {
  const std::string text = "'input x skip | conv_transpose kernel 6 k4 s2 p1 | add @skip'";
  const std::vector<float> x = write_wave("x.npy", {2, 3, 4, 5}, 0),
                           s = write_wave("s.npy", {2, 6, 8, 10}, 1),
                           k = write_wave("k.npy", {3, 6, 4, 4}, 2);
  const std::string command = "run " + text + " --engine reference --param kernel=" + path("k.npy") +
                              " --output " + path("y.npy") + " --input x=" + path("x.npy");
  expect_error(command, "input skip is missing: add --input skip=FILE.npy");
  expect_error(command + " --input x=" + path("s.npy"), "--input x is given twice");
  expect_error(command + " --input z=" + path("s.npy"),
               "--input z is none of the pipeline's inputs: x, skip");
  expect_error(command + " --input " + path("s.npy"), "the pipeline has the inputs x, skip: say which");
  EXPECT_EQ(run(command + " --input skip=" + path("s.npy")).code, 0);
  const Plan plan =
      Pipeline::parse("input x skip | conv_transpose kernel 6 k4 s2 p1 | add @skip")
          .compile({{"x", {2, 3, 4, 5}}, {"skip", {2, 6, 8, 10}}}, {.engine = Engine::kReference});
  std::vector<float> want(s.size());
  plan.run({{"x", x.data()}, {"skip", s.data()}, {"kernel", k.data()}}, want.data());
  const NpyArray got = read_npy(path("y.npy"));
  ASSERT_EQ(got.data.size(), want.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(got.data.data(), want.data(), got.data.size()), 0);
  // One input may be named too.
  EXPECT_EQ(run("run relu --input input=" + path("x.npy") + " --output " + path("y.npy")).code, 0);

  const std::string sizes = " --input x=1x3x4x5 --input skip=1x6x8x10";
  expect_error("explain " + text + " --input x=1x3x4x5", "--input skip=SHAPE is missing");
  const json explained = expect_json("explain " + text + sizes + " --json");
  EXPECT_NE(explained.dump().find("skip"), std::string::npos);
  EXPECT_EQ(run("explain " + text + sizes + " --engine cuda").code, 0);
  EXPECT_EQ(run("verify " + text + sizes).code, 0);
  EXPECT_EQ(expect_json("bench " + text + sizes + " --runs 1 --json")["input"].get<Shape>(),
            (Shape{1, 3, 4, 5}));
}

TEST_F(Cli, WritesEveryOutput) {
  write_wave("x.npy", {2, 3, 4, 5}, 0);
  write_wave("k.npy", {3, 6, 4, 4}, 1);
  const std::string command =
      "run 'conv_transpose kernel s2 p1 as c | moments batch out stats | @c | batch_norm' "
      "--input " +
      path("x.npy") + " --param kernel=" + path("k.npy");
  expect_error(command + " --output " + path("y.npy"), "add --output stats=FILE.npy");
  expect_error(command + " --output stats=" + path("s.npy"), "the result's --output FILE.npy is missing");
  expect_error(command + " --output " + path("y.npy") + " --output s=" + path("s.npy"), "--output s is none");
  const json facts =
      expect_json(command + " --output " + path("y.npy") + " --output stats=" + path("s.npy") + " --json");
  EXPECT_EQ(facts["extra_outputs"]["stats"]["shape"], (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(read_npy(path("s.npy"), std::nullopt).shape, (Shape{2, 6}));
  EXPECT_EQ(read_npy(path("y.npy"), std::nullopt).shape, (Shape{2, 6, 8, 10}));
  EXPECT_EQ(
      run("verify 'conv_transpose kernel bias 6 k4 s2 p1 as c | moments batch out stats | @c | batch_norm' "
          "--input 2x3x4x5")
          .code,
      0);
}

TEST(Compare, SeesOneWrongElement) {
  const Plan plan = Pipeline::parse("conv_transpose k 4 k3 s2 | gelu")
                        .compile({{"input", {1, 3, 5, 6}}}, {.engine = Engine::kReference});
  cli::Case c(plan, 1);
  EXPECT_EQ(cli::compare(c).right(), false);  // nobody has run it: all poison
  c.run();
  EXPECT_TRUE(cli::compare(c).right());
  auto* y = reinterpret_cast<float*>(c.output.data());
  const float old = y[7];
  y[7] = old + 1e-4f;
  EXPECT_FALSE(cli::compare(c).right());
  EXPECT_EQ(cli::compare(c).index, 7);
  y[7] = std::nanf("");
  EXPECT_FALSE(cli::compare(c).right());
  y[7] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(cli::compare(c).right());
  y[7] = old;
  EXPECT_TRUE(cli::compare(c).right());
}

}  // namespace
}  // namespace upweave
