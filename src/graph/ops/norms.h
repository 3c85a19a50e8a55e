#pragma once
// Which elements a norm normalises together, in one place for the rows, the laws and the engines.
#include "graph/operation.h"

namespace upweave {

// The sets of an N C ... value: by voxel (all channels), by trailing axes, by channel over the batch, by
// (n, channel), or by (n, group of channels).
struct NormSets {
  enum class Kind { kChannel, kLast, kBatch, kInstance, kGroup };
  Kind kind;
  int64_t channels, voxels, groups, trailing, sets, size;  // sets of `size` elements each

  int64_t of(int64_t offset) const {
    switch (kind) {
      case Kind::kChannel:
        return offset / (channels * voxels) * voxels + offset % voxels;
      case Kind::kLast:
        return offset / trailing;
      case Kind::kBatch:
        return offset / voxels % channels;
      case Kind::kInstance:
        return offset / voxels;
      case Kind::kGroup:
        return offset / (voxels * (channels / groups));
    }
    return 0;
  }
};

// What norms, moments and normalize say.
struct NormAttrs {
  std::string_view axes;  // channel, last, batch, instance or group
  int64_t groups;         // of axes `group`; 0 if not said
  int64_t count;          // trailing axes that axes `last` takes together
  double eps;
};
NormAttrs norm_attrs(const Node& node);

// Of layer_norm, batch_norm, group_norm, instance_norm, rms_norm, moments and normalize over a value of
// `shape`.
NormSets norm_sets(const Node& node, const Shape& shape);
inline double norm_eps(const Node& node) { return norm_attrs(node).eps; }

}  // namespace upweave
