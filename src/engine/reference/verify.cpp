#include "engine/reference/verify.h"

#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace upweave {

Rounding rounding_of(const Options& options) {
  Rounding rounding;
  const bool fast = options.precision == Precision::kFast;
  if (fast) rounding.product = 0x1p-11;
  rounding.tiles = fast && options.engine == Engine::kCpu && options.algorithm == Algorithm::kAuto;
  return rounding;
}

std::vector<Tensor> truths(const Graph& graph, const std::map<std::string, Tensor>& tensors,
                           const Options& options) {
  const Rounding rounding = rounding_of(options);
  std::vector<Tensor> outputs = evaluate_outputs(graph, tensors, &rounding);
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Dtype dtype =
        k == 0 ? options.dtype : output_dtype(graph, graph.extra_outputs[k - 1].value, options.dtype);
    Tensor& output = outputs[k];
    for (size_t i = 0; i < output.err.size(); ++i)
      output.err[i] = element_bound(output.data[i], output.err[i], dtype);
  }
  return outputs;
}

Tensor truth(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Options& options) {
  return std::move(truths(graph, tensors, options).front());
}

double fraction_of_bound(double got, double want, double bound, Dtype dtype) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  if (!std::isfinite(want)) return kWrong;
  if (std::isinf(bound)) return 0;
  if (std::isinf(got)) return (got > 0 ? want : -want) + bound >= largest(dtype) ? 0 : kWrong;
  const double fraction = std::fabs(got - want) / bound;
  return std::isnan(fraction) ? kWrong : fraction;
}

Verdict judge(const Tensor& truth, const void* output, Dtype dtype) {
  Verdict verdict;
  verdict.elements = static_cast<int64_t>(truth.data.size());
  for (int64_t i = 0; i < verdict.elements; ++i) {
    const double want = truth.data[static_cast<size_t>(i)], bound = truth.err[static_cast<size_t>(i)];
    const double got = load_element(output, dtype, i), fraction = fraction_of_bound(got, want, bound, dtype);
    if (i == 0 || fraction > verdict.worst) verdict = {fraction, i, verdict.elements, got, want, bound};
  }
  return verdict;
}

void Verdict::add(const Verdict& other) {
  if (other.worst > worst) {
    const int64_t before = elements;
    *this = other;
    index += before;
    elements = before;
  }
  elements += other.elements;
}

}  // namespace upweave
