#include "graph/operation.h"

// Where values come from. Neither computes anything: infer() and the engines know them.
namespace upweave {

std::vector<Operation> ops_leaves() {
  return {
      {.id = Op::kInput,
       .family = Family::kLeaf,
       .name = "input",
       .summary = "the pipeline's input, N C [[D] H] W",
       .example = "@input",
       .internal = true},
      {.id = Op::kParam,
       .family = Family::kLeaf,
       .name = "param",
       .summary = "a named tensor",
       .example = "param kernel",
       .internal = true},
  };
}

}  // namespace upweave
