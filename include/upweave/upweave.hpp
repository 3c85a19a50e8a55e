#pragma once
// Upweave for C++: describe a pipeline around a transposed convolution, compile it once, run it often.
//
//   auto pipeline = upweave::Pipeline::parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu");
//   auto plan = pipeline.compile({{"input", {2, 32, 16, 32, 32}}, {"kernel", {32, 64, 4, 4, 4}}});
//   plan.run({{"input", x}, {"kernel", k}}, y);
//
// Every function throws upweave::Error, whose what() is one sentence that names the parameter and its value.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if defined(__GNUC__)
#define UPWEAVE_PUBLIC __attribute__((visibility("default")))
#else
#define UPWEAVE_PUBLIC
#endif

namespace upweave {

enum class Status { kOk = 0, kInvalid = 1, kUnsupported = 2, kMemory = 3, kDevice = 4, kInternal = 5 };

class UPWEAVE_PUBLIC Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

enum class Dtype { kF32, kF16, kBF16, kF64 };  // kF64 runs on the reference engine only
enum class Engine { kReference, kCpu, kCuda };
// kStrict: as accurate as float32 FMA arithmetic. kFast: as accurate as TF32.
enum class Precision { kStrict, kFast };
// kDirect forbids transforms that trade additions for multiplications (Toom-Cook).
enum class Algorithm { kAuto, kDirect };

using Shape = std::vector<int64_t>;                   // N C [[D] H] W
using Shapes = std::map<std::string, Shape>;          // by name; an input without one is "input"
using Tensors = std::map<std::string, const void*>;   // dense, row-major, of the plan's Dtype
using Outputs = std::map<std::string, void*>;         // likewise, of OutputInfo's dtype
using Settings = std::map<std::string, std::string>;  // values for the text's $names: {{"stride", "2x2x2"}}

struct Options {
  Dtype dtype = Dtype::kF32;
  Engine engine = Engine::kCpu;
  Precision precision = Precision::kStrict;
  Algorithm algorithm = Algorithm::kAuto;
  int threads = 0;  // 0: all that the machine offers
  int device = -1;  // Engine::kCuda: which GPU; -1: the one that the calling thread uses
};

// Operations and bytes of one run; `unfused` is the pipeline as written, one pass over memory an operation.
struct Cost {
  double flops = 0, unfused_flops = 0;
  double bytes = 0, unfused_bytes = 0;
  int passes = 0, unfused_passes = 0;
};

// What a text gives out beside its result, by `out NAME`.
struct OutputInfo {
  std::string name;
  Shape shape;
  Dtype dtype;  // the plan's; for moments at least kF32
};

struct Graph;
class PlanImpl;
class WeightsImpl;

// The parameters in the form that an engine wants (packed, transformed): made once, used by many runs.
class UPWEAVE_PUBLIC Weights {
 public:
  explicit Weights(std::shared_ptr<const WeightsImpl> impl) : impl_(std::move(impl)) {}
  const WeightsImpl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const WeightsImpl> impl_;
};

// Immutable, cheap to copy, safe to share: any number of threads may run one plan at once.
class UPWEAVE_PUBLIC Plan {
 public:
  explicit Plan(std::shared_ptr<const PlanImpl> impl) : impl_(std::move(impl)) {}

  const Shape& output_shape() const;
  const std::vector<OutputInfo>& extra_outputs() const;  // those beside the result
  const std::vector<std::string>& inputs() const;        // names, in the text's order
  const Shapes& tensor_shapes() const;                   // every input and every parameter
  // What a run takes beyond inputs, outputs and weights packed before it. A run from unpacked tensors packs
  // them there too, so that this is enough for either.
  size_t workspace_bytes() const;
  Cost cost() const;
  // What one run should take on the plan's engine and this machine, weights packed already: a model, good for
  // choosing between ways to do the same.
  double predicted_seconds() const;
  std::string explain() const;       // for a person
  std::string explain_json() const;  // for a program

  // Reads every tensor, writes the output; nothing of the output is written if it throws. `workspace`, if
  // given, is workspace_bytes() of scratch aligned to 64 (on the engine's device), and nothing is allocated.
  // `stream` is a CUstream for Engine::kCuda and ignored elsewhere.
  void run(const Tensors& tensors, void* output, void* workspace = nullptr, void* stream = nullptr) const;

  // The same in two steps, for weights that stay while inputs change.
  Weights pack(const Tensors& parameters, void* stream = nullptr) const;
  void run(const Weights& weights, const void* input, void* output, void* workspace = nullptr,
           void* stream = nullptr) const;

  // The second step by name, for plans that have several inputs.
  void run(const Weights& weights, const Tensors& inputs, void* output, const Outputs& extra = {},
           void* workspace = nullptr, void* stream = nullptr) const;

  // Both, for plans that have extra outputs: `extra` says where each of them goes.
  void run(const Tensors& tensors, void* output, const Outputs& extra, void* workspace = nullptr,
           void* stream = nullptr) const;
  void run(const Weights& weights, const void* input, void* output, const Outputs& extra,
           void* workspace = nullptr, void* stream = nullptr) const;

  const PlanImpl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const PlanImpl> impl_;
};

// A pipeline that has no sizes yet. Immutable and cheap to copy.
class UPWEAVE_PUBLIC Pipeline {
 public:
  explicit Pipeline(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {}

  static Pipeline parse(std::string_view text, const Settings& settings = {});
  // One of the pipelines that come with the library (`upweave list`), its sizes replaced by `settings`.
  static Pipeline named(std::string_view slug, const Settings& settings = {});

  std::string text() const;                     // canonical: parse(text()).text() == text()
  std::vector<std::string> inputs() const;      // names; {"input"} unless the text says others
  std::vector<std::string> parameters() const;  // names, in order of first use
  Plan compile(const Shapes& shapes, const Options& options = {}) const;
  // The plan's predicted_seconds(), before any of its kernels is compiled: for Engine::kCuda without a GPU
  // too, and then for an H200.
  double predicted_seconds(const Shapes& shapes, const Options& options = {}) const;

  const Graph& graph() const { return *graph_; }

 private:
  std::shared_ptr<const Graph> graph_;
};

// The same pipelines without writing text:
//   Builder().conv_transpose("kernel", {.stride = {2}, .padding = {1}}).layer_norm("channel").gelu().build()
// Each method adds the stage of that name; `stage` adds any operation of the vocabulary.
class UPWEAVE_PUBLIC Builder {
 public:
  struct Conv {
    std::string bias = {};
    Shape stride = {}, padding = {}, output_padding = {}, dilation = {};
    int64_t groups = 1;
  };
  Builder& stage(std::string_view text);  // e.g. "leaky_relu 0.2", or first of all "input x skip"
  Builder& as(std::string_view label);    // names the current value
  Builder& out(std::string_view name);    // names it and gives it out beside the result
  Builder& take(std::string_view label);  // goes on from a named value
  Builder& conv_transpose(std::string_view kernel, const Conv& conv);
  Builder& conv_transpose(std::string_view kernel) { return conv_transpose(kernel, Conv()); }
  Builder& avg_pool(const Shape& window);
  Builder& max_pool(const Shape& window);
  Builder& layer_norm(std::string_view axes) { return stage("layer_norm " + std::string(axes)); }
  Builder& batch_norm(std::string_view weight, std::string_view bias);
  Builder& group_norm(int64_t groups, std::string_view weight, std::string_view bias);
  Builder& softmax(std::string_view axes) { return stage("softmax " + std::string(axes)); }
  Builder& sum(std::string_view axes) { return stage("sum " + std::string(axes)); }
  Builder& mean(std::string_view axes) { return stage("mean " + std::string(axes)); }
  Builder& clamp(double lo, double hi);
  Builder& gelu() { return stage("gelu"); }
  Builder& relu() { return stage("relu"); }
  Builder& tanh() { return stage("tanh"); }
  Builder& sigmoid() { return stage("sigmoid"); }
  Builder& add(double value);
  Builder& add(std::string_view tensor) { return stage("add " + std::string(tensor)); }
  Builder& mul(double value);
  Builder& mul(std::string_view tensor) { return stage("mul " + std::string(tensor)); }
  std::string text() const { return text_; }
  Pipeline build(const Settings& settings = {}) const { return Pipeline::parse(text_, settings); }

 private:
  std::string text_;
};

// What comes with the library.
struct CatalogEntry {
  std::string slug, title, text;
  Settings settings;  // defaults of the text's $names
  Shapes shapes;  // the sizes it is measured at (the input, and parameters whose shape the text leaves open)
};
UPWEAVE_PUBLIC const std::vector<CatalogEntry>& catalog();

// The vocabulary: one entry an operation, for help texts and bindings.
struct OperationInfo {
  std::string name, summary, example;
};
UPWEAVE_PUBLIC std::vector<OperationInfo> vocabulary();

UPWEAVE_PUBLIC const char* version();

}  // namespace upweave
