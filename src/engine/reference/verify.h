#pragma once
// Whether an engine's answer is right: the one judge of `upweave verify`, Plan.verify() and the tests.
#include "engine/engine.h"
#include "engine/reference/reference.h"

namespace upweave {

// How an engine that was asked for `options` may round.
Rounding rounding_of(const Options& options);

// The pipeline's value, and behind it its extra outputs; `err` bounds elementwise how far the stored result
// may be off. Infinite where a float32 engine may overflow on the way: there nothing is known.
std::vector<Tensor> truths(const Graph& graph, const std::map<std::string, Tensor>& tensors,
                           const Options& options);
Tensor truth(const Graph& graph, const std::map<std::string, Tensor>& tensors, const Options& options);

// |got - want| as a fraction of its bound: at most 1 is right. 0 where both are the same NaN or infinity, or
// where `got` is an infinity that `want`, off by the bound, rounds to; infinite where only one is a number.
double fraction_of_bound(double got, double want, double bound, Dtype dtype);

struct Verdict {
  double worst = 0;  // the largest fraction of a bound
  int64_t index = 0, elements = 0;
  double got = 0, want = 0, bound = 0;  // there
  bool right() const { return worst <= 1; }
  void add(const Verdict& other);  // an output behind this one
};
Verdict judge(const Tensor& truth, const void* output, Dtype dtype);

}  // namespace upweave
