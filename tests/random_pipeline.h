#pragma once
// Random pipelines over the vocabulary, with shapes and data, for property tests of laws, plans and engines.
// A case is known by its seed alone. UPWEAVE_SEED=n makes case n the first of every property test; the seed
// of a failing case is in its trace. UPWEAVE_TEST_EFFORT=light takes an eighth of the cases.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/operation.h"
#include "graph/text.h"

namespace upweave::testing {

inline uint64_t first_seed() {
  const char* given = std::getenv("UPWEAVE_SEED");
  return given ? std::strtoull(given, nullptr, 10) : 1;
}

inline int cases(int full) {
  const char* effort = std::getenv("UPWEAVE_TEST_EFFORT");
  return effort && std::string(effort) == "light" ? std::max(1, full / 8) : full;
}

// The same numbers on every platform: std's distributions are not portable, its engines are.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15u + 1) {}
  int64_t integer(int64_t lo, int64_t hi) {  // inclusive
    return lo + static_cast<int64_t>(engine_() % static_cast<uint64_t>(hi - lo + 1));
  }
  double real(double lo, double hi) {
    return lo + (hi - lo) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }
  bool chance(double p) { return real(0, 1) < p; }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[integer(0, static_cast<int64_t>(from.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// What is hidden among ordinary numbers, and where. kInfTerms spares parameters that values are multiplied
// by: infinity times a value that is 0 up to rounding is NaN or not by accident.
enum class Fill { kFinite, kNanInput, kInfInput, kNanParams, kInfParams, kInfTerms };

inline bool is_factor(const Graph& graph, const Node& param) {
  for (const Node& node : graph.nodes) {
    for (size_t slot = 1; slot < node.in.size(); ++slot) {
      if (node.in[slot] == kNone || &graph[node.in[slot]] != &param) continue;
      const bool weight = slot == (is(node, Op::kNormalize) ? 2 : 1) && is(node, Family::kNorm);
      if (is(node, Op::kMul) || is(node, Op::kDiv) || is(node, Op::kPrelu) || is(node, Op::kSnake) ||
          is(node, Op::kBatchNormGiven) || weight)
        return true;
    }
  }
  return false;
}

// Values in [-1, 1] that are float16 and bfloat16 numbers at once: multiples of 1/64.
inline std::map<std::string, Tensor> random_tensors(const Graph& graph, Random& rng,
                                                    Fill fill = Fill::kFinite) {
  std::map<std::string, Tensor> tensors;
  for (const Node& node : graph.nodes) {
    if (!node.in.empty()) continue;
    Tensor tensor{node.shape, std::vector<double>(static_cast<size_t>(count(node.shape))), {}};
    for (double& v : tensor.data) {
      v = static_cast<double>(rng.integer(-64, 63)) / 64;
      if (v >= 0) v += 1.0 / 64;  // never 0: 0 * inf is for the cases that ask for it
    }
    const bool input = is(node, Op::kInput);
    const bool nan = fill == (input ? Fill::kNanInput : Fill::kNanParams);
    const bool inf = fill == (input ? Fill::kInfInput : Fill::kInfParams) ||
                     (fill == Fill::kInfTerms && !input && !is_factor(graph, node));
    if ((nan || inf) && !tensor.data.empty() && (input || rng.chance(0.7))) {
      constexpr double kInf = std::numeric_limits<double>::infinity();
      for (int64_t n = rng.integer(1, 3); n > 0; --n) {
        double& v =
            tensor.data[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(tensor.data.size()) - 1))];
        v = nan ? std::numeric_limits<double>::quiet_NaN() : rng.pick({kInf, -kInf, 0.0});
      }
    }
    tensors[node.name] = std::move(tensor);
  }
  return tensors;
}

struct RandomPipeline {
  std::string text;
  // The inputs' and every kernel's; other parameters have the shape that their user expects.
  Shapes shapes;
  Graph graph;  // parsed, with shapes
};

struct Limits {
  int stages = 6;            // at most
  int64_t elements = 20000;  // of any value
  int convolutions = 1;
};

// Grows a text stage by stage. A stage that does not fit the value it meets is refused by infer and another
// is drawn, so that the vocabulary's own rules decide what can stand where.
class PipelineMaker {
 public:
  PipelineMaker(Random& rng, const Limits& limits) : rng_(rng), limits_(limits) {}

  RandomPipeline make() {
    const int64_t spatial = rng_.integer(1, 3);
    Shape input = {rng_.integer(1, 3), rng_.integer(1, 6)};
    for (int64_t a = 0; a < spatial; ++a)
      input.push_back(rng_.integer(spatial == 3 ? 2 : 3, spatial == 3 ? 6 : 9));
    pipeline_.shapes["input"] = input;
    shape_ = input;
    const int64_t wanted = rng_.integer(2, limits_.stages);
    const int64_t conv_at = rng_.integer(0, std::min<int64_t>(1, wanted - 1));
    for (int64_t stage = 0, tries = 0; stage < wanted && tries < 200; ++tries) {
      const bool conv = limits_.convolutions > 0 && (stage == conv_at || rng_.chance(0.05));
      if (extend(conv ? convolution() : motif())) ++stage;
    }
    if (labels_ > 0 && rng_.chance(0.3)) extend(fmt::format("{} @y{}", binary(), rng_.integer(1, labels_)));
    give_inputs();
    return pipeline_;
  }

 private:
  bool extend(const std::string& stages) {
    std::string text = pipeline_.text.empty() ? stages : pipeline_.text + " | " + stages;
    const bool label = rng_.chance(0.25);
    if (label) text += fmt::format(" as y{}", labels_ + 1);
    const std::string kernel = std::exchange(kernel_, "");
    if (std::optional<Graph> graph = fits(text)) {
      pipeline_.text = text;
      pipeline_.graph = std::move(*graph);
      shape_ = pipeline_.graph[pipeline_.graph.output].shape;
      labels_ += label;
      limits_.convolutions -= !kernel.empty();
      return true;
    }
    pipeline_.shapes.erase(kernel);
    return false;
  }

  // Some of the full tensors come with every run: inputs, a few with one sample for all.
  void give_inputs() {
    const RandomPipeline before = pipeline_;
    std::string names = "input input";
    for (const std::string& name : parameter_names(before.graph)) {
      const std::string full = name + ":full";
      const size_t at = pipeline_.text.find(" " + full);
      if (at == std::string::npos || !rng_.chance(0.3)) continue;
      pipeline_.text.replace(at + 1, full.size(), "@" + name);
      names += " " + name;
      for (const Node& node : before.graph.nodes) {
        if (node.name == name) pipeline_.shapes[name] = node.shape;
      }
      if (rng_.chance(0.3)) pipeline_.shapes[name][0] = 1;
    }
    if (pipeline_.text == before.text) return;
    pipeline_.text = names + " | " + pipeline_.text;
    std::optional<Graph> graph = fits(pipeline_.text);
    if (graph) {
      pipeline_.graph = std::move(*graph);
    } else {
      pipeline_ = before;
    }
  }

  std::optional<Graph> fits(const std::string& text) const {
    try {
      Graph graph = infer(parse_text(text), pipeline_.shapes);
      for (const Node& node : graph.nodes) {
        if (count(node.shape) > limits_.elements) return std::nullopt;
      }
      return graph;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string extents(int64_t lo, int64_t hi) {
    if (rng_.chance(0.5)) return std::to_string(rng_.integer(lo, hi));
    Shape each;
    for (size_t a = 2; a < shape_.size(); ++a) each.push_back(rng_.integer(lo, hi));
    return to_string(each);
  }
  std::string fresh(const char* prefix) { return prefix + std::to_string(++names_); }
  std::string number() { return rng_.pick<std::string>({"2", "0.5", "-1.5", "-0.25", "3", "1"}); }
  std::string binary() { return rng_.pick<std::string>({"add", "sub", "mul", "minimum", "maximum"}); }
  std::string affine() { return rng_.chance(0.6) ? " " + fresh("w") + " " + fresh("b") : ""; }
  std::string operand() {
    switch (rng_.integer(0, 4)) {
      case 0:
        return number();
      case 1:
        return fresh("t") + ":scalar";
      case 2:
        return fresh("t") + ":full";
      case 3:
        if (labels_ > 0) return fmt::format("@y{}", rng_.integer(1, labels_));
        [[fallthrough]];
      default:
        return fresh("t");
    }
  }

  std::string convolution() {
    const int64_t groups = shape_[1] % 2 == 0 && rng_.chance(0.3) ? 2 : 1;
    Shape kernel = {shape_[1], rng_.integer(1, 6 / groups)};
    for (size_t a = 2; a < shape_.size(); ++a) kernel.push_back(rng_.integer(1, 4));
    kernel_ = fresh("kernel");
    pipeline_.shapes[kernel_] = kernel;
    std::string text = "conv_transpose " + kernel_ + (rng_.chance(0.5) ? " " + fresh("b") : "");
    text += " s" + extents(1, 3) + " p" + extents(0, 2);
    if (rng_.chance(0.4)) text += " op" + extents(0, 2);
    if (rng_.chance(0.2)) text += " d" + extents(1, 2);
    if (groups > 1) text += " g2";
    if (rng_.chance(0.15)) text += rng_.pick<std::string>({" | avg_pool 2", " | avg_pool 3"});
    return text;
  }

  // Few, and small: the general road computes them one product at a time.
  std::string plain_conv() {
    const int64_t groups = shape_[1] % 2 == 0 && rng_.chance(0.3) ? 2 : 1;
    if (rng_.chance(0.15)) return fmt::format("matmul {} {}", fresh("w"), rng_.integer(1, 6));
    Shape kernel;
    for (size_t a = 2; a < shape_.size(); ++a) kernel.push_back(rng_.integer(1, 3));
    std::string text =
        fmt::format("conv {} {} k{}", fresh("t"), groups * rng_.integer(1, 3), to_string(kernel));
    if (rng_.chance(0.5)) text += " bias=" + fresh("b");
    text += " s" + extents(1, 2) + " p" + extents(0, 2);
    if (rng_.chance(0.2)) text += " pe" + extents(0, 1);
    if (rng_.chance(0.2)) text += " d" + extents(1, 2);
    if (groups > 1) text += " g2";
    return text + rng_.pick<std::string>({"", "", " reflect", " replicate", " circular"});
  }

  std::string move() {
    switch (rng_.integer(0, 6)) {
      case 0:
        return labels_ > 0 ? fmt::format("cat @y{}", rng_.integer(1, labels_)) : "cat @input";
      case 1:
        return "pad " + extents(0, 2) + " e" + extents(0, 1) +
               rng_.pick<std::string>({"", " value=0.5", " reflect", " replicate", " circular"});
      case 2:
        return rng_.pick<std::string>(
            {"crop 1:", "crop :-1", "crop -2:", "crop channels=1:", "crop channels=:2"});
      case 3:
        return "upsample " + extents(1, 2) +
               rng_.pick<std::string>({" nearest", " linear", " linear corners"});
      case 4:
        return rng_.pick<std::string>({"pixel_shuffle ", "pixel_unshuffle "}) + extents(1, 2);
      case 5:
        return "glu channel";
      default:
        return rng_.pick<std::string>(
            {"snake " + fresh("t") + " eps=2", "snake " + fresh("t") + " " + fresh("t") + " eps=2",
             "abs | add 0.5 | pow 1.5", "pow 2", "rms_norm channel " + fresh("w"), "rms_norm last",
             "batch_norm_given " + fresh("m") + " " + fresh("v") + " eps=3",
             "batch_norm_given " + fresh("m") + " " + fresh("v") + affine() + " eps=3"});
    }
  }

  // One stage, or a few that laws know.
  std::string motif() {
    switch (rng_.integer(-3, 13)) {
      case -3:
        return plain_conv();
      case -2:
      case -1:
        return move();
      case 0:
        return rng_.pick<std::string>({"tanh", "relu", "sigmoid", "leaky_relu 0.2", "clamp -0.5 0.75",
                                       "add 1", "mul -2", "mul " + fresh("t"), "batch_norm" + affine()}) +
               " | " + rng_.pick<std::string>({"max_pool ", "min_pool "}) + extents(1, 3);
      case 1: {
        const std::string pool = rng_.pick<std::string>({"max_pool ", "min_pool ", "avg_pool "});
        return pool + extents(1, 2) + " | " + pool + extents(1, 2);
      }
      case 2:
        return rng_.pick<std::string>({"add ", "sub ", "mul ", "div "}) +
               rng_.pick<std::string>({"2", "-3", fresh("t"), fresh("t") + ":scalar"}) + " | " + norm();
      case 3:
        return norm();
      case 4:
        return "clamp 0 1 | softmax space";
      case 5:
        return rng_.pick<std::string>(
            {"softmax channel", "softmax space", "logsumexp channel", "logsumexp space"});
      case 6:
        return rng_.pick<std::string>({"sum ", "mean ", "max ", "min "}) +
               rng_.pick<std::string>({"channel", "space", "depth", "height", "width"});
      case 7:
        return "avg_pool " + extents(1, 3);
      case 8:
        return rng_.pick<std::string>({"max_pool ", "min_pool ", "avg_pool "}) + extents(1, 3) + " s" +
               extents(1, 3);
      case 9:
      case 10:
        return binary() + " " + operand();
      case 11:
        return rng_.pick<std::string>({"add ", "mul ", "div "}) + number() + " | " +
               rng_.pick<std::string>({"mean space", "avg_pool 2"});
      case 12:
        if (labels_ > 0)
          return fmt::format("@y{} | {} @y{}", rng_.integer(1, labels_), binary(), rng_.integer(1, labels_));
        [[fallthrough]];
      default:
        if (rng_.chance(0.05)) return "clamp nan 1";  // rare: it leaves nothing but NaN to compare
        return rng_.pick<std::string>({"gelu",
                                       "gelu tanh",
                                       "tanh",
                                       "sigmoid",
                                       "relu",
                                       "leaky_relu 0.2",
                                       "swish",
                                       "mish",
                                       "hardswish",
                                       "hardtanh -1 1",
                                       "clamp -1 inf",
                                       "exp",
                                       "elu",
                                       "elu 0.5",
                                       "softplus",
                                       "softplus beta=2 threshold=5",
                                       "sin",
                                       "abs",
                                       "abs | add 0.5 | sqrt",
                                       "prelu " + fresh("t")});
    }
  }
  std::string norm() {
    switch (rng_.integer(0, 4)) {
      case 0:
        return "layer_norm channel" + affine();
      case 1:
        return rng_.pick<std::string>({"layer_norm last", "layer_norm last 2"}) + affine();
      case 2:
        return "batch_norm" + affine();
      case 3:
        return "instance_norm" + affine();
      default:
        return "group_norm " + rng_.pick<std::string>({"1", "2", "3"}) + affine();
    }
  }

  Random& rng_;
  Limits limits_;
  RandomPipeline pipeline_;
  Shape shape_;
  std::string kernel_;
  int64_t labels_ = 0, names_ = 0;
};

inline RandomPipeline random_pipeline(uint64_t seed, const Limits& limits = {}) {
  Random rng(seed);
  while (true) {
    RandomPipeline pipeline = PipelineMaker(rng, limits).make();
    if (!pipeline.text.empty()) return pipeline;
  }
}

// The same pipeline with some of its values, and moments of some, given out beside the result.
inline std::string with_outputs(const Graph& graph, Random& rng) {
  Graph more = graph;
  const std::vector<bool> weights = weight_side(graph);
  for (Id id = 0; id < graph.size(); ++id) {
    if (weights[id]) continue;
    const auto give = [&](Id value) {
      more.extra_outputs.push_back({fmt::format("given{}", more.extra_outputs.size()), value});
    };
    if (rng.chance(0.2)) give(id);
    if (!rng.chance(0.3)) continue;
    Node moments;
    moments.op = &operation(Op::kMoments);
    moments.in = {id};
    moments.attrs.set("axes", std::string(rng.chance(0.7) ? "batch" : "instance"));
    give(more.add(std::move(moments)));
  }
  return print_text(more);
}

}  // namespace upweave::testing
