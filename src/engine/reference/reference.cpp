#include "engine/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "base/watch.h"
#include "engine/engine.h"

namespace upweave {

Tensor load_tensor(const void* data, Dtype dtype, const Shape& shape) {
  Tensor tensor{shape, std::vector<double>(count(shape)), {}};
  for (size_t i = 0; i < tensor.data.size(); ++i)
    tensor.data[i] = load_element(data, dtype, static_cast<int64_t>(i));
  return tensor;
}

namespace {

bool finite(const Tensor& tensor) {
  return std::ranges::all_of(tensor.data, [](double v) { return std::isfinite(v); });
}

}  // namespace

// An engine meets infinities and NaN exactly or not at all: they carry no error, and bounds see ones instead,
// so that a number that comes after them (a clamp's, a maximum's) keeps a bound that says something.
std::vector<Tensor> evaluate_outputs(const Graph& graph, const std::map<std::string, Tensor>& tensors,
                                     const Rounding* rounding) {
  const auto readers = users(graph);
  std::vector<Tensor> values(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    Tensor& out = values[id];
    if (node.in.empty()) {
      const auto it = tensors.find(node.name);
      if (it == tensors.end()) throw invalid("the tensor {} is missing", node.name);
      out = it->second;
      out.shape = node.shape;
      if (rounding && out.err.empty()) out.err.assign(out.data.size(), 0.0);
      continue;
    }
    out.shape = node.shape;
    out.data.resize(count(node.shape));
    std::vector<const Tensor*> in;
    for (const Id operand : node.in) in.push_back(operand == kNone ? nullptr : &values[operand]);
    node.op->evaluate(node, in, out);
    throw_if_interrupted();
    if (rounding) {
      if (!node.op->bound) throw fail(Status::kInternal, "{} has no error bound", node.op->name);
      out.err.resize(out.data.size());
      std::vector<Tensor> tame(in.size());
      for (size_t i = 0; i < in.size(); ++i) {
        if (!in[i] || finite(*in[i])) continue;
        tame[i] = *in[i];
        for (double& v : tame[i].data) v = std::isfinite(v) ? v : 1;
        in[i] = &tame[i];
      }
      node.op->bound(node, in, out, *rounding);
      throw_if_interrupted();
      for (size_t i = 0; i < out.data.size(); ++i) {
        double& err = out.err[i];
        err = std::isfinite(out.data[i]) ? err + rounding->tiny : 0;
        // What overflows, or comes of what did, may be anything.
        if (!(std::fabs(out.data[i]) + err <= rounding->largest) && std::isfinite(out.data[i]))
          err = std::numeric_limits<double>::infinity();
      }
    }
    for (const Id operand : node.in) {  // nobody reads it again
      if (operand != kNone && readers[operand].back() == id) values[operand] = {};
    }
  }
  std::vector<Tensor> outputs = {values[graph.output]};
  for (const Output& output : graph.extra_outputs) outputs.push_back(values[output.value]);
  return outputs;
}

Tensor evaluate(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Rounding* rounding) {
  return std::move(evaluate_outputs(graph, tensors, rounding).front());
}

double element_bound(double v, double err, Dtype dtype) {
  return err + roundoff(dtype) * (std::fabs(v) + err) + tiny(dtype);
}

namespace {

class ReferenceProgram : public Program {
 public:
  ReferenceProgram(std::shared_ptr<const FusedPlan> plan, Dtype dtype)
      : plan_(std::move(plan)), dtype_(dtype) {
    for (const Node& node : plan_->source.nodes) {
      if (!is(node, Op::kParam)) continue;
      parameters_.push_back({&node, bytes_});
      bytes_ += static_cast<size_t>((count(node.shape) * size_of(dtype) + 63) / 64 * 64);
    }
  }
  size_t packed_bytes() const override { return bytes_; }
  size_t workspace_bytes() const override { return 0; }

  void pack(const std::vector<const void*>& parameters, void* packed, void*) const override {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(packed) + parameters_[i].offset, parameters[i],
                  static_cast<size_t>(count(parameters_[i].node->shape) * size_of(dtype_)));
    }
  }

  void run(const void* packed, const void* const* inputs, void* const* outputs, void*, void*) const override {
    const Graph& graph = plan_->source;
    std::map<std::string, Tensor> tensors;
    for (Id id = 0; is_input(graph, id); ++id)
      tensors[graph[id].name] = load_tensor(inputs[id], dtype_, graph[id].shape);
    for (const auto& [node, offset] : parameters_) {
      tensors[node->name] = load_tensor(static_cast<const std::byte*>(packed) + offset, dtype_, node->shape);
    }
    const std::vector<Tensor> results = evaluate_outputs(graph, tensors);
    for (size_t k = 0; k < results.size(); ++k) {
      const Dtype dtype = k == 0 ? dtype_ : output_dtype(graph, graph.extra_outputs[k - 1].value, dtype_);
      for (size_t i = 0; i < results[k].data.size(); ++i)
        store_element(outputs[k], dtype, static_cast<int64_t>(i), results[k].data[i]);
    }
  }

  double predicted_seconds() const override { return plan_->cost.unfused_flops * kOperation; }
  std::vector<std::string> describe() const override {
    return {
        "reference: float64, one operation at a time as written; the passes above are what other engines do"};
  }

 private:
  static constexpr double kOperation = 2e-9;  // seconds, about
  struct Parameter {
    const Node* node;
    size_t offset;
  };
  std::shared_ptr<const FusedPlan> plan_;
  Dtype dtype_;
  std::vector<Parameter> parameters_;
  size_t bytes_ = 0;
};

std::unique_ptr<Program> compile(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  return std::make_unique<ReferenceProgram>(std::move(plan), options.dtype);
}

}  // namespace

extern const EngineEntry reference_engine = {.compile = compile};

}  // namespace upweave
