#include "engine/cpu/slices.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/cpu/tile/build.h"
#include "graph/ops/conv.h"
#include "graph/ops/norms.h"

namespace upweave::cpu {
namespace {

std::atomic<int64_t> last_level_for_test{0};

// Whether each channel of a sample is computed from that channel alone.
bool keeps_channels_apart(const Graph& graph, const Node& node) {
  switch (node.op->reach(node)) {
    case Reach::kPoint:
    case Reach::kWindow:
      return true;
    case Reach::kSpace:
      return !(is(node, Op::kMoments) || is(node, Op::kGroupNorm)) ||
             norm_sets(node, graph[node.in[0]].shape).kind == NormSets::Kind::kInstance;
    default:
      return false;
  }
}

// What no tile takes is written row after row, and values between slices are not.
bool in_tiles(const Node& node) {
  return !is(node, Family::kMove) && !is_plain_conv(node) && !is(node, Op::kBatchNormGiven) &&
         (!is(node, Family::kPointwise) || pointwise_fn(node));
}

// The channel axis of a parameter that meets an N C ... value: a vector's own, else counted from the back.
size_t channel_axis(const Shape& shape, size_t rank) {
  return shape.size() + 1 < rank ? 0 : shape.size() + 1 - rank;
}

// What varies along channels loses all but a block of them. False: it varies along samples, or otherwise.
bool cut_weights(Shape& shape, size_t axis, int64_t channels, int64_t blocks) {
  if (count(shape) == 1) return true;
  if (axis > 0 && shape[0] != 1) return false;
  if (shape[axis] != channels) return shape[axis] == 1;
  shape[axis] /= blocks;
  return true;
}

}  // namespace

std::optional<Slices> cut_slices(const FusedPlan& whole, int64_t blocks) {
  if (whole.passes.size() != 2 || whole.passes[0].conv == kNone || !whole.graph.extra_outputs.empty())
    return std::nullopt;
  // One value is kept, at the convolution's own resolution; what follows takes it element by element.
  const std::vector<Id>& kept = whole.passes[0].writes;
  auto space = [&](Id id) { return Shape(whole.graph[id].shape.begin() + 2, whole.graph[id].shape.end()); };
  if (kept.size() != 1 || space(kept[0]) != space(whole.passes[0].conv)) return std::nullopt;
  for (const Id id : whole.passes[1].nodes) {
    if (whole.graph[id].op->reach(whole.graph[id]) != Reach::kPoint) return std::nullopt;
  }

  const Id conv = whole.passes[0].conv;
  Slices slices{whole.graph[conv].shape[0], blocks, whole};
  Graph& graph = slices.plan.graph;
  const int64_t channels = graph[conv].shape[1];
  if (channels % blocks != 0 || conv_geometry(graph, graph[conv]).groups != 1) return std::nullopt;

  // In front of the convolution all channels stay together; behind it they must stay apart.
  std::vector<bool> head(graph.nodes.size()), tail(graph.nodes.size()), cut(graph.nodes.size());
  head[static_cast<size_t>(graph[conv].in[0])] = true;
  for (Id id = conv; id-- > 0;) {
    if (!head[static_cast<size_t>(id)] || whole.weights[static_cast<size_t>(id)]) continue;
    for (const Id in : graph[id].in) {
      if (in != kNone) head[static_cast<size_t>(in)] = true;
    }
  }
  for (Id id = 0; id < graph.size(); ++id) {
    const size_t i = static_cast<size_t>(id);
    Node& node = graph[id];
    if (whole.weights[i]) continue;
    if (!is_input(graph, id) && !in_tiles(node)) return std::nullopt;
    if (head[i]) {
      node.shape[0] = 1;
      continue;
    }
    if (is_input(graph, id) || (id != conv && !keeps_channels_apart(whole.graph, node))) return std::nullopt;
    for (size_t slot = 0; slot < node.in.size(); ++slot) {
      const Id in = node.in[slot];
      if (in == kNone || (id == conv && slot == 0)) continue;
      const size_t k = static_cast<size_t>(in);
      if (!whole.weights[k] && !tail[k]) return std::nullopt;
      if (!whole.weights[k] || cut[k]) continue;
      Shape& shape = graph[in].shape;
      if (id == conv && slot == 1) {
        shape[1] /= blocks;
        node.attrs.erase("channels");  // the text's word on all of them
      } else if (head[k] || !cut_weights(shape, channel_axis(shape, node.shape.size()), channels, blocks)) {
        return std::nullopt;
      }
      cut[k] = true;
    }
    tail[i] = true;
    node.shape = node.op->shape(graph, node);
    if (!is_statistics(node) && (node.shape.size() < 2 || node.shape[1] != channels / blocks))
      return std::nullopt;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {  // the output is written once, past the caches
    Place& place = slices.plan.places[i];
    if (tail[i] && place.kind == Place::Kind::kOutput && static_cast<Id>(i) != graph.output) {
      place.kind = Place::Kind::kWorkspace;
    }
  }
  return slices;
}

int64_t last_level_bytes() {
  const int64_t bytes = last_level_for_test;
  return bytes > 0 ? bytes : int64_t{20} << 20;
}
void set_last_level_bytes_for_test(int64_t bytes) { last_level_for_test = bytes; }

void copy_block(const void* from, const Shape& whole, const Shape& part, int64_t b, int64_t element_bytes,
                void* to) {
  const int64_t bytes = count(part) * element_bytes;
  const size_t axis = static_cast<size_t>(std::ranges::mismatch(whole, part).in1 - whole.begin());
  if (axis == whole.size()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  int64_t outer = 1;
  for (size_t a = 0; a < axis; ++a) outer *= whole[a];
  const int64_t piece = bytes / outer, row = piece / part[axis] * whole[axis];
  for (int64_t i = 0; i < outer; ++i) {
    std::memcpy(static_cast<char*>(to) + i * piece, static_cast<const char*>(from) + i * row + b * piece,
                static_cast<size_t>(piece));
  }
}

}  // namespace upweave::cpu
