#pragma once
// The truth: float64, naive, one operation at a time, never optimised. Other engines are tested against it,
// and any graph runs on it before it runs fast.
#include <map>
#include <string>

#include "graph/operation.h"

namespace upweave {

Tensor load_tensor(const void* data, Dtype dtype, const Shape& shape);

// Evaluates a graph that has shapes. With `rounding`, the result's `err` bounds elementwise how far an engine
// that rounds so may be off; final rounding to the element type is not in it (see element_bound).
Tensor evaluate(const Graph& graph, const std::map<std::string, Tensor>& tensors,
                const Rounding* rounding = nullptr);
// The same of all outputs: the result, then the extra ones.
std::vector<Tensor> evaluate_outputs(const Graph& graph, const std::map<std::string, Tensor>& tensors,
                                     const Rounding* rounding = nullptr);

// What storing value v in `dtype` may add to an error.
double element_bound(double v, double err, Dtype dtype);

}  // namespace upweave
