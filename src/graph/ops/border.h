#pragma once
// What lies beyond the ends of an axis, for conv and pad.
#include <algorithm>

#include "graph/operation.h"

namespace upweave {

enum class Border : uint8_t { kZeros, kReflect, kReplicate, kCircular };

// The words of the attribute `mode`, in the order of the enum.
inline const std::vector<std::string_view> kBorderWords = {"zeros", "reflect", "replicate", "circular"};

inline Border border_of(const Node& node) {
  if (!node.attrs.has("mode")) return Border::kZeros;
  return static_cast<Border>(std::ranges::find(kBorderWords, node.attrs.word("mode")) - kBorderWords.begin());
}

// Where position i of an axis that was lengthened at both ends is read; -1: nowhere, it is a constant.
inline int64_t border_source(Border border, int64_t i, int64_t extent) {
  if (i >= 0 && i < extent) return i;
  switch (border) {
    case Border::kZeros:
      return -1;
    case Border::kReflect:  // the last element is not repeated: 2 1 | 0 1 2 | 1 0
      return i < 0 ? -i : 2 * (extent - 1) - i;
    case Border::kReplicate:
      return i < 0 ? 0 : extent - 1;
    case Border::kCircular:
      return i < 0 ? i + extent : i - extent;
  }
  return -1;
}

// Throws unless an axis of this extent can be lengthened so.
inline void check_border(const Node& node, const char* axis, int64_t before, int64_t behind, int64_t extent) {
  for (const int64_t padding : {before, behind}) {
    if (padding < 0)
      throw invalid("padding_{} of {} is {}; it must not be negative", axis, node.op->name, padding);
    const Border border = border_of(node);
    if (border == Border::kReflect && padding >= extent) {
      throw invalid("padding_{} of {} is {}; to reflect it must be smaller than the extent, which is {}",
                    axis, node.op->name, padding, extent);
    }
    if (border == Border::kCircular && padding > extent) {
      throw invalid("padding_{} of {} is {}; to go round it must be at most the extent, which is {}", axis,
                    node.op->name, padding, extent);
    }
  }
}

}  // namespace upweave
