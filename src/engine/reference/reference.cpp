#include "engine/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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
Tensor evaluate(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Rounding* rounding) {
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
        out.err[i] = std::isfinite(out.data[i]) ? out.err[i] + rounding->tiny : 0;
      }
    }
    for (const Id operand : node.in) {  // nobody reads it again
      if (operand != kNone && operand != graph.output && readers[operand].back() == id) values[operand] = {};
    }
  }
  return std::move(values[graph.output]);
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
      if (!is(node, "param")) continue;
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

  void run(const void* packed, const void* input, void* output, void*, void*) const override {
    const Graph& graph = plan_->source;
    std::map<std::string, Tensor> tensors;
    tensors["input"] = load_tensor(input, dtype_, graph[0].shape);
    for (const auto& [node, offset] : parameters_) {
      tensors[node->name] = load_tensor(static_cast<const std::byte*>(packed) + offset, dtype_, node->shape);
    }
    const Tensor result = evaluate(graph, tensors);
    for (size_t i = 0; i < result.data.size(); ++i)
      store_element(output, dtype_, static_cast<int64_t>(i), result.data[i]);
  }

  std::vector<std::string> describe() const override {
    return {
        "reference: float64, one operation at a time as written; the passes above are what other engines do"};
  }

 private:
  struct Parameter {
    const Node* node;
    size_t offset;
  };
  std::shared_ptr<const FusedPlan> plan_;
  Dtype dtype_;
  std::vector<Parameter> parameters_;
  size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Program> compile_reference(std::shared_ptr<const FusedPlan> plan, const Options& options) {
  return std::make_unique<ReferenceProgram>(std::move(plan), options.dtype);
}

}  // namespace upweave
