#pragma once
// What laws share: making nodes, putting one value in another's place, and asking what an operand looks like.
#include <cmath>

#include "graph/operation.h"
#include "graph/ops/pools.h"
#include "graph/text.h"
#include "rewrite/rewrite.h"

namespace upweave {

// A copy of a graph in the middle of a rewrite.
class Edit {
 public:
  explicit Edit(const Graph& graph) : graph_(graph) {}

  Id add(Op op, std::vector<Id> in, Attributes attrs = {}) {
    Node node;
    node.op = &operation(op);
    node.in = std::move(in);
    node.attrs = std::move(attrs);
    return graph_.add(std::move(node));
  }
  // The same operation on other operands; labels stay with the value they were given to.
  Id again(Id id, std::vector<Id> in) { return add(graph_[id].op->id, std::move(in), graph_[id].attrs); }
  Node& node(Id id) { return graph_[id]; }

  // Everyone who read `old` reads `with` instead; what nobody needs goes, shapes are inferred anew.
  Graph replace(Id old, Id with);

 private:
  Graph graph_;
};

inline bool is_number(const Node& node) { return node.in.size() == 2 && node.in[1] == kNone; }
bool only_user(const Graph& graph, Id id);  // whether it is read once, the output counting as a reader

// The second operand of an arithmetic node, broadcast against the node's shape (all 1 for a number).
Shape operand_shape(const Graph& graph, const Node& node);
inline bool constant_over_space(const Shape& broadcast) {
  for (size_t a = 2; a < broadcast.size(); ++a) {
    if (broadcast[a] != 1) return false;
  }
  return true;
}
inline bool one_of(const Node& node, std::initializer_list<Op> ops) {
  for (const Op op : ops) {
    if (is(node, op)) return true;
  }
  return false;
}
inline bool is_norm(const Node& node) {
  return one_of(node, {Op::kLayerNorm, Op::kBatchNorm, Op::kGroupNorm, Op::kInstanceNorm});
}
inline bool is_extreme_pool(const Node& node) { return one_of(node, {Op::kMaxPool, Op::kMinPool}); }

// The laws; each file holds the ones of its subject.
std::optional<Graph> drop_identity(const Graph&, Id, Firing&);
std::optional<Graph> share_equal(const Graph&, Id, Firing&);
std::optional<Graph> clamp_to_nan(const Graph&, Id, Firing&);
std::optional<Graph> pad_into_conv(const Graph&, Id, Firing&);
std::optional<Graph> split_padding(const Graph&, Id, Firing&);
std::optional<Graph> conv_as_transposed(const Graph&, Id, Firing&);
std::optional<Graph> split_bias(const Graph&, Id, Firing&);
std::optional<Graph> split_given_norm(const Graph&, Id, Firing&);
std::optional<Graph> scale_into_weights(const Graph&, Id, Firing&);
std::optional<Graph> upsample_into_conv(const Graph&, Id, Firing&);
std::optional<Graph> shuffle_into_conv(const Graph&, Id, Firing&);
std::optional<Graph> crop_before_pointwise(const Graph&, Id, Firing&);
std::optional<Graph> crop_into_conv(const Graph&, Id, Firing&);
std::optional<Graph> join_convs(const Graph&, Id, Firing&);
std::optional<Graph> drop_shift(const Graph&, Id, Firing&);
std::optional<Graph> drop_scale(const Graph&, Id, Firing&);
std::optional<Graph> center_weights(const Graph&, Id, Firing&);
std::optional<Graph> adjust_moments(const Graph&, Id, Firing&);
std::optional<Graph> split_norm(const Graph&, Id, Firing&);
std::optional<Graph> shorten_stride(const Graph&, Id, Firing&);
std::optional<Graph> merge_pools(const Graph&, Id, Firing&);
std::optional<Graph> pool_before_monotone(const Graph&, Id, Firing&);
std::optional<Graph> average_before_linear(const Graph&, Id, Firing&);
std::optional<Graph> pool_kernel(const Graph&, Id, Firing&);
std::optional<Graph> mean_without_conv(const Graph&, Id, Firing&);
std::optional<Graph> bounded_softmax(const Graph&, Id, Firing&);
std::optional<Graph> split_softmax(const Graph&, Id, Firing&);
std::optional<Graph> crop_outputs(const Graph&, Id, Firing&);

}  // namespace upweave
