#pragma once
#include "graph/op.h"

namespace upweave::cuda {

// The body of `float f(float x, float a, float b)`, `a` and `b` as in Operation::value, which is written into
// the text of a pipeline that has the operation. nullptr if there is none.
const char* device_form(Op op);

}  // namespace upweave::cuda
