#pragma once
#include "rewrite/rewrite.h"

namespace upweave {

// What laws must leave: a graph as check(graph) wants it, that reads tensors of the same names and shapes as
// the one that was written, and gives out the same outputs.
void check(const Rewritten& rewritten, const Graph& written);

}  // namespace upweave
