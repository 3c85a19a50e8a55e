#pragma once
// Operations and bytes, for plans and for people.
#include "plan/plan.h"

namespace upweave {

Cost plan_cost(const FusedPlan& plan, Dtype dtype);
// Bytes that one operation of the pipeline as written reads and writes.
double unfused_bytes(const Graph& graph, Id id, Dtype dtype);

}  // namespace upweave
