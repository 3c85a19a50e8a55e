#include "plan/cut.h"

#include <algorithm>

#include "graph/operation.h"
#include "graph/ops/conv.h"
#include "graph/ops/norms.h"

namespace upweave {
namespace {

// Whether each channel of a sample is computed from that channel alone.
bool keeps_channels_apart(const Graph& graph, const Node& node) {
  if (is(node, Family::kConvolution)) return false;
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

std::optional<Part> cut_slices(const FusedPlan& whole, int64_t blocks) {
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
  Part part{.samples = 1, .all = whole.graph[conv].shape[0], .blocks = blocks, .graph = whole.graph};
  Graph& graph = part.graph;
  const int64_t channels = graph[conv].shape[1];
  if (channels % blocks != 0 || conv_geometry(graph, graph[conv]).groups != 1) return std::nullopt;

  // In front of the convolution all channels stay together; behind it they must stay apart.
  std::vector<bool> head(graph.nodes.size()), tail(graph.nodes.size()), cut(graph.nodes.size());
  head[graph[conv].in[0]] = true;
  for (Id id = conv; id-- > 0;) {
    if (!head[id] || whole.weights[id]) continue;
    for (const Id in : graph[id].in) {
      if (in != kNone) head[in] = true;
    }
  }
  for (Id id = 0; id < graph.size(); ++id) {
    Node& node = graph[id];
    if (whole.weights[id]) continue;
    if (is(node, Family::kMove) || is_plain_conv(node)) return std::nullopt;  // no tile takes them
    if (head[id]) {
      node.shape[0] = 1;
      continue;
    }
    if (is_input(graph, id) || (id != conv && !keeps_channels_apart(whole.graph, node))) return std::nullopt;
    for (size_t slot = 0; slot < node.in.size(); ++slot) {
      const Id in = node.in[slot];
      if (in == kNone || (id == conv && slot == 0)) continue;
      if (!whole.weights[in] && !tail[in]) return std::nullopt;
      if (!whole.weights[in] || cut[in]) continue;
      Shape& shape = graph[in].shape;
      if (id == conv && slot == 1) {
        shape[1] /= blocks;
        node.attrs.erase("channels");  // the text's word on all of them
      } else if (head[in] || !cut_weights(shape, channel_axis(shape, node.shape.size()), channels, blocks)) {
        return std::nullopt;
      }
      cut[in] = true;
    }
    tail[id] = true;
    node.shape = node.op->shape(graph, node);
    if (!is_statistics(node) && (node.shape.size() < 2 || node.shape[1] != channels / blocks))
      return std::nullopt;
  }
  return part;
}

std::optional<Part> cut_samples(const FusedPlan& whole, int64_t samples) {
  Part part{.samples = samples, .all = batch_size(whole.graph), .graph = whole.graph};
  Graph& graph = part.graph;
  const Id inputs = input_count(graph);
  for (Id id = 0; id < inputs; ++id) {
    if (graph[id].shape[0] == part.all) graph[id].shape[0] = samples;
  }
  for (Id id = inputs; id < graph.size(); ++id) {
    Node& node = graph[id];
    if (whole.weights[id]) continue;
    if (!is_statistics(node) && node.shape[0] != part.all) return std::nullopt;
    const size_t rank = graph[node.in[0]].shape.size();
    const bool convolves = is(node, Family::kConvolution);
    for (size_t slot = 1; slot < node.in.size() && !convolves; ++slot) {
      const Id in = node.in[slot];
      if (in == kNone || !whole.weights[in]) continue;
      const Shape& shape = graph[in].shape;
      if (rank > 2 && shape.size() == rank && shape[0] != 1) return std::nullopt;
    }
    node.shape = node.op->shape(graph, node);
  }
  for (const Output& output :
       graph.extra_outputs) {  // each sample's sets: means of all, then variances of all
    if (is_statistics(graph[output.value]) && graph[output.value].shape != whole.graph[output.value].shape)
      return std::nullopt;
  }
  return part;
}

}  // namespace upweave
