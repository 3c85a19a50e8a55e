#pragma once
// What a framework computes that runs one operation at a time and rounds every value to float32, and
// pipelines for which that is more exact than bounds tell: differences in which rounding cancels.
#include <bit>
#include <cmath>
#include <map>

#include "engine/reference/reference.h"
#include "graph/text.h"

namespace upweave::testing {

// `y`: what the framework makes of the graph's convolution.
inline Tensor eager(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Tensor& y) {
  std::vector<Tensor> values(graph.nodes.size());
  for (Id id = 0; id < graph.size(); ++id) {
    const Node& node = graph[id];
    if (node.in.empty() || is(node, Op::kConvTranspose)) {
      values[id] = node.in.empty() ? tensors.at(node.name) : y;
      continue;
    }
    std::vector<const Tensor*> in;
    for (const Id operand : node.in) in.push_back(operand == kNone ? nullptr : &values[operand]);
    values[id] = {node.shape, std::vector<double>(static_cast<size_t>(count(node.shape))), {}};
    node.op->evaluate(node, in, values[id]);
    for (double& v : values[id].data) v = static_cast<float>(v);
  }
  return values[graph.output];
}

// Rounded to the nearest of ten bits behind the first, ties to even.
inline std::map<std::string, Tensor> as_tf32(std::map<std::string, Tensor> tensors) {
  for (const char* const name : {"input", "kernel"}) {
    for (double& v : tensors.at(name).data) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(v));
      v = std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
    }
  }
  return tensors;
}

// Behind a convolution: results that are differences of it, or of a mean of it, and another mean of it.
inline const char* const kDifferences[] = {
    "mul 2 | batch_norm w b | mean space",
    "batch_norm w b as y | mean space as m | @y | sub @m",
    "mul 1 as y | mean space as m | @y | sub @m",
    "mul 0.5 as y | mean space as m | @y | avg_pool 2 | sub @m",
    "add b | group_norm 2 w b | mean space",
    "instance_norm w b | mean space",
    "instance_norm as y | mean space as m | @y | sub @m | max_pool 2",
    "layer_norm channel as y | mean channel as m | @y | sub @m",
    "batch_norm as y | mean space as m | @y | avg_pool 2 | sub @m | tanh",
};

struct Errors {
  double largest, allowed;
};
// How far `got` is from the truth, and how far it may be: so many times as far as one operation at a time,
// and what the means cost that float32 rounds on both sides of a difference, behind a norm too.
// `exact` and `theirs`: the convolution, and what the framework makes of it.
template <class Got>
Errors errors_of(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Tensor& exact,
                 const Tensor& theirs, double times, Got&& got) {
  const Tensor truth = evaluate(graph, tensors), other = eager(graph, tensors, theirs);
  const auto rows = static_cast<size_t>(exact.shape[0] * exact.shape[1]);  // channels of samples
  const size_t voxels = exact.data.size() / rows;
  double mean_size = 0, in_deviations = 0, weight = 1, off = 0;
  for (size_t row = 0; row < rows; ++row) {
    double mean = 0, square = 0;
    const double* const y = exact.data.data() + row * voxels;
    for (size_t v = 0; v < voxels; ++v) mean += y[v] / static_cast<double>(voxels);
    for (size_t v = 0; v < voxels; ++v) square += (y[v] - mean) * (y[v] - mean) / static_cast<double>(voxels);
    mean_size = std::max(mean_size, std::fabs(mean));
    in_deviations = std::max(in_deviations, std::fabs(mean) / std::sqrt(square));
  }
  if (const auto w = tensors.find("w"); w != tensors.end()) {
    for (const double v : w->second.data) weight = std::max(weight, std::fabs(v));
  }
  Errors e{0, 4 * 0x1p-24 * std::max(mean_size, in_deviations * weight)};
  for (size_t i = 0; i < truth.data.size(); ++i) {
    off = std::max(off, std::fabs(other.data[i] - truth.data[i]));
    const double ours = std::fabs(got(static_cast<int64_t>(i)) - truth.data[i]);
    e.largest = std::isnan(ours) ? INFINITY : std::max(e.largest, ours);
  }
  e.allowed += times * off;
  return e;
}

}  // namespace upweave::testing
