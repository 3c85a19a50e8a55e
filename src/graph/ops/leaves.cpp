#include "graph/operation.h"

// Where values come from. Neither computes anything: infer() and the engines know them.
namespace upweave {

std::vector<Operation> ops_leaves() {
  return {
      {.name = "input",
       .summary = "the pipeline's input, N C [[D] H] W",
       .example = "@input",
       .internal = true},
      {.name = "param", .summary = "a named tensor", .example = "param kernel", .internal = true},
  };
}

}  // namespace upweave
