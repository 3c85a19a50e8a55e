#pragma once
// A pipeline's graph as Python objects, for whoever runs it by other means than an engine.
#include <string>

#include "array.h"

namespace upweave::python {

// ([(operation, name, operands, attributes)], output, {name: extra output}): operands and outputs are
// positions in the list or None, attributes a dict of numbers, tuples of extents, words and flags, as the
// text gave them.
Object graph_list(const std::string& text);

}  // namespace upweave::python
