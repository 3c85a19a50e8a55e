#pragma once
// What operations are told apart by. Their names are for texts alone.
#include <cstddef>
#include <cstdint>

namespace upweave {

// One for each `Op::k...` that the rows of ops/ name; the build lists them.
enum class Op : uint8_t {
#define UPWEAVE_OP(id) id,
#include "operation_ids.inc"
#undef UPWEAVE_OP
};
constexpr size_t kOps = 0
#define UPWEAVE_OP(id) +1
#include "operation_ids.inc"
#undef UPWEAVE_OP
    ;

// Operations that are alike in what they need: an engine has one way for a family.
enum class Family : uint8_t {
  kLeaf,         // input, param
  kPointwise,    // an element of the result from one element of each operand: `value` of the row says how
  kConvolution,  // conv, conv_transpose, and its mean
  kPool,
  kReduction,  // one value of whole axes
  kNorm,       // statistics of sets of elements, and what is done with them
  kSoftmax,
  kMove,     // elements come from other places: cat, pad, crop, upsample, pixel_shuffle, glu
  kWeights,  // computed from parameters when they are packed
};

}  // namespace upweave
