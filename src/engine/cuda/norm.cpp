#include <algorithm>

#include "engine/cuda/lower.h"
#include "graph/operation.h"
#include "graph/ops/norms.h"

// Norms over instances and groups whose sets fit a block's registers: moments and normalize in one sweep.
namespace upweave::cuda {
namespace {

// Whether an operand is one number for all voxels of a channel.
bool one_a_channel(const Lowering& l, Id id, const Shape& shape) {
  if (id == kNone) return true;
  const Shape strides = broadcast_strides(l.graph[id].shape, shape);
  return l.weights[id] && std::all_of(strides.begin() + 2, strides.end(), [](int64_t s) { return s == 0; });
}

// Value `id` at voxel j of channel `at` by flat addresses, if it is in memory or made of such a value by
// functions of the value and its channel alone; else empty.
std::string flat_value(const Lowering& l, Id id) {
  const Node& node = l.graph[id];
  if (l.stored(id)) {
    const int64_t voxels = count(node.shape) / (node.shape[0] * node.shape[1]);
    return fmt::format("load<{}>({}, ((i64)at.x[0] * {} + at.x[1]) * {} + j)", l.source.type(id),
                       l.source.address(id), node.shape[1], voxels);
  }
  if (!is_pointwise(node) || l.graph[node.in[0]].shape != node.shape) return "";
  for (size_t s = 1; s < node.in.size(); ++s) {
    const bool statistics = s == 1 && (is(node, "normalize") || is(node, "softmax_apply"));
    if (!statistics && !one_a_channel(l, node.in[s], node.shape)) return "";
  }
  const std::string x = flat_value(l, node.in[0]);
  return x.empty() ? "" : l.source.pointwise(node, x, "at");
}

// The normalize that alone reads moments `id` of the value it normalises, or kNone.
Id reader_of(const Lowering& l, Id id) {
  Id norm = kNone;
  for (Id reader = 0; reader < l.graph.size(); ++reader) {
    if (std::ranges::find(l.graph[reader].in, id) == l.graph[reader].in.end()) continue;
    if (norm != kNone || !is(l.graph[reader], "normalize") || l.graph[reader].in[0] != l.graph[id].in[0])
      return kNone;
    norm = reader;
  }
  return norm;
}

}  // namespace

Id lower_norm(Lowering& l, Id id) {
  const Node& node = l.graph[id];
  if (!is(node, "moments") || node.attrs.word("axes") == "batch") return kNone;
  const Id norm = reader_of(l, id);
  if (norm == kNone) return kNone;
  const Node& normalize = l.graph[norm];
  const Shape& in = l.graph[node.in[0]].shape;
  const NormSets sets = norm_sets(node, in);
  const int64_t groups = sets.kind == NormSets::Kind::kGroup ? sets.groups : in[1], channels = in[1] / groups,
                voxels = count(in) / (in[0] * in[1]);
  if (channels > 1024) return kNone;
  // A channel's voxels go to neighbouring threads, so that what depends on the channel alone is computed once
  // a thread. About twenty voxels a thread pay for the two joins over the block.
  int64_t per_channel = std::clamp<int64_t>((voxels + 19) / 20, 1, 1024 / channels);
  if (per_channel >= 8 && per_channel % 8 != 0 && (per_channel / 8 + 1) * 8 * channels <= 1024)
    per_channel = (per_channel / 8 + 1) * 8;  // whole sectors
  const int64_t each = (voxels + per_channel - 1) / per_channel, full = voxels / per_channel;
  const int64_t threads = (channels * per_channel + 31) / 32 * 32;
  if (each > 24) return kNone;
  std::string value = flat_value(l, node.in[0]);
  if (value.empty()) {
    Shape space = in;
    space[0] = space[1] = 1;
    value = fmt::format("[&] {{ At i = {}::at(j); i.x[0] = at.x[0]; i.x[1] = at.x[1]; return {}; }}()",
                        dims(space), l.source.operand(node.in[0], in, "i"));
  }
  if ((normalize.in[2] != kNone && !one_a_channel(l, normalize.in[2], in)) ||
      (normalize.in[3] != kNone && !one_a_channel(l, normalize.in[3], in)))
    return kNone;
  l.keep(norm);
  auto parameter = [&](size_t s, const char* none) {
    return normalize.in[s] == kNone ? none : l.source.operand(normalize.in[s], in, "at");
  };
  const std::string guard =
      threads == channels * per_channel ? "" : "c < " + std::to_string(channels) + " && ";
  const std::string text = fmt::format(
      "const int c = threadIdx.x / {0}, first = threadIdx.x % {0};\n"
      "const At at = At{{{{(int)blockIdx.x / {1}, (int)blockIdx.x % {1} * {2} + min(c, {2} - 1), 0, 0, "
      "0}}}};\n"
      "auto there = [&](int k) {{ return {3}(k < {4} || first + k * {0} < {5}); }};\n"
      "float v[{6}];\n"
      "#pragma unroll\nfor (int k = 0; k < {6}; ++k) {{ const int j = first + k * {0}; v[k] = there(k) ? {7} "
      ": "
      "0.f; }}\n"
      "float m, q; block_moments<{6}, {4}>(v, there, {14}., m, q);\n"
      "const float r = inv_sqrt(q + {8}), w = {9}, b = {10};\n"
      "{11}* out = ({11}*){12} + ((i64)at.x[0] * {13} + at.x[1]) * {5};\n"
      "#pragma unroll\nfor (int k = 0; k < {6}; ++k) if (there(k)) from_float((v[k] - m) * r * w + b, "
      "out[first "
      "+ k * {0}]);\n",
      per_channel, groups, channels, guard, full, voxels, each, value, number(norm_eps(normalize)),
      parameter(2, "1.f"), parameter(3, "0.f"), l.source.type(norm), l.source.address(norm), in[1],
      channels * voxels);
  l.kernel(fmt::format("norm_{}", norm), text, node.shape[1], static_cast<unsigned>(threads));
  note_work(l, norm);
  return norm;
}

}  // namespace upweave::cuda
