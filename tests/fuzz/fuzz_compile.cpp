// Any text with any shapes either is refused with one sentence or is planned, by the CPU engine and for a
// GPU, in little time and memory. An input is lines: a digit that chooses element type, precision and
// threads; the pipeline; then tensors, "kernel=4x8x3x3". The mutator splices stages, extents and extreme
// numbers.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "api/road.h"
#include "base/error.h"
#include "engine/cuda/describe.h"
#include "graph/text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace upweave;

// A second without sanitizers is several with them.
constexpr double kSeconds = 10;
constexpr int kMostGpuStages = 16;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t at = text.find(by); at != text.npos; at = text.find(by, start)) {
    parts.push_back(text.substr(start, at - start));
    start = at + by.size();
  }
  parts.push_back(text.substr(start));
  return parts;
}

std::string join(const std::vector<std::string>& parts, const std::string& by) {
  return fmt::format("{}", fmt::join(parts, by));
}

Shape shape_of(const std::string& text) {
  Shape shape;
  for (const std::string& part : split(text, "x")) {
    int64_t extent = 0;
    std::from_chars(part.data(), part.data() + part.size(), extent);
    if (shape.size() < 8) shape.push_back(extent);
  }
  return shape;
}

template <class F>
void refused_or_done(const char* what, F&& f) {
  const std::clock_t start = std::clock();
  try {
    f();
  } catch (const Error& error) {
    const std::string_view sentence = error.what();
    check(!sentence.empty() && sentence.size() < 4000, "the sentence is empty or a page");
    for (const char c : sentence) check(static_cast<unsigned char>(c) >= ' ', "the sentence has controls");
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (seconds > kSeconds) std::fprintf(stderr, "%s took %.1f s\n", what, seconds);
  check(seconds <= kSeconds, "planning takes too long");
}

const char* const kStages[] = {
    "conv_transpose kernel s2 p1",
    "conv_transpose kernel bias 8 k3 s2 p1 op1",
    "conv_transpose kernel 16 k5",
    "conv_transpose k2 4 k4x3 s2x1 d2 g2",
    "max_pool 2",
    "max_pool 3 s1",
    "max_pool 64",
    "avg_pool 2x1 s3",
    "avg_pool 2",
    "min_pool 1 s9",
    "layer_norm channel",
    "layer_norm last 2",
    "batch_norm",
    "batch_norm w b",
    "group_norm 2",
    "instance_norm",
    "softmax space",
    "softmax channel",
    "logsumexp channel",
    "sum channel",
    "mean space",
    "max space drop",
    "mean height",
    "sum width",
    "min depth",
    "gelu",
    "tanh",
    "relu",
    "mish",
    "elu 0.5",
    "softplus",
    "sin",
    "prelu b",
    "clamp 0 1",
    "add 1",
    "mul b",
    "mul t:full",
    "div -3",
    "sub @y",
    "add @input",
    "relu as y",
    "@y",
    "@input",
    "input input s",
    "input x s",
    "add @s",
    "@s",
    "maximum t:full",
    "param kernel",
    "center",
    "pool_taps 2 p1",
    "mean_conv kernel s2 out9",
    "moments batch as m",
    "normalize batch @m",
    "rms_norm channel",
    "softmax_stats space as q",
    "softmax_apply space @q",
};
const char* const kNumbers[] = {
    "0",
    "1",
    "2",
    "3",
    "7",
    "16",
    "64",
    "100",
    "127",
    "128",
    "1000",
    "4000",
    "16384",
    "65536",
    "131072",
    "262144",
    "1000000",
    "100000000",
    "1073741824",
    "2147483647",
    "2147483648",
    "1099511627776",
    "4611686018427387903",
    "9223372036854775807",
    "-1",
    "-9223372036854775808",
    "1e308",
    "nan",
};

using Random = std::minstd_rand;

template <class T, size_t n>
const T& any_of(const T (&items)[n], Random& random) {
  return items[random() % n];
}

// Puts another number in the place of one.
void change_number(std::string& text, Random& random) {
  std::vector<std::pair<size_t, size_t>> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(text[i]))) continue;
    size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    numbers.emplace_back(i, end - i);
    i = end;
  }
  if (numbers.empty()) return;
  const auto [at, length] = numbers[random() % numbers.size()];
  text.replace(at, length, any_of(kNumbers, random));
}

void change_stages(std::string& text, Random& random) {
  std::vector<std::string> stages = split(text, " | ");
  const size_t at = random() % stages.size();
  switch (random() % 4) {
    case 0:
      stages[at] = any_of(kStages, random);
      break;
    case 1:
      stages.insert(stages.begin() + static_cast<ptrdiff_t>(at), any_of(kStages, random));
      break;
    case 2:
      stages.erase(stages.begin() + static_cast<ptrdiff_t>(at));
      break;
    case 3: {  // many of one
      const std::string stage = stages[at];
      stages.insert(stages.begin() + static_cast<ptrdiff_t>(at), 1 + random() % 40, stage);
      break;
    }
  }
  text = join(stages, " | ");
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  std::string input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> lines = split(input, "\n");
  const unsigned what = random() % 8;
  if (what == 0 || lines.size() < 3) return LLVMFuzzerMutate(data, size, max_size);
  if (what < 4) change_stages(lines[1], random);
  if (what == 4) change_number(lines[1], random);
  if (what == 5 || what == 6) change_number(lines[2 + random() % (lines.size() - 2)], random);
  if (what == 7) {
    const char* const names[] = {"kernel", "bias", "b", "t", "w", "k2", "x", "s"};
    std::string shape = any_of(kNumbers, random);
    for (unsigned i = random() % 5; i > 0; --i) shape += std::string("x") + any_of(kNumbers, random);
    lines.push_back(std::string(any_of(names, random)) + "=" + shape);
  }
  const std::string output = join(lines, "\n");
  if (output.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(output.begin(), output.end(), data);
  return output.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::vector<std::string> lines = split(std::string(reinterpret_cast<const char*>(bytes), size), "\n");
  if (lines.size() < 3 || lines[0].empty()) return 0;
  Options options;
  const unsigned choice = static_cast<unsigned char>(lines[0][0]);
  const Dtype types[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
  options.dtype = types[choice % 3];
  options.precision = choice / 3 % 2 ? Precision::kFast : Precision::kStrict;
  options.threads = choice / 6 % 2 ? 64 : 1;
  Shapes shapes;
  for (size_t i = 2; i < lines.size(); ++i) {
    const size_t equals = lines[i].find('=');
    if (equals != std::string::npos)
      shapes[lines[i].substr(0, equals)] = shape_of(lines[i].substr(equals + 1));
  }
  refused_or_done("the CPU engine", [&] {
    const Plan plan = Pipeline::parse(lines[1]).compile(shapes, options);
    check(!plan.explain().empty() && !plan.explain_json().empty(), "nothing is explained");
  });
  // Lowering for a GPU takes seconds for dozens of reductions in a row (51 of `softmax space`: 9.7 s): of
  // long texts only the plan for the CPU is fuzzed.
  if (std::ranges::count(lines[1], '|') > kMostGpuStages) return 0;
  options.engine = Engine::kCuda;
  refused_or_done("the CUDA engine", [&] {
    const FusedPlan plan = lower_to_plan(parse_text(lines[1]), shapes, options);
    if (count(visible_shape(plan.source)) == 0) return;
    // Up to the kernels' texts: NVRTC takes hundreds of megabytes for what is planned in a few.
    cuda::describe(plan, options, cuda::lower(plan, options, cuda::Chip{}), "", cuda::Rates{});
  });
  return 0;
}
