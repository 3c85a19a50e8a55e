#include "engine/cpu/take_head.h"

#include <algorithm>

#include "engine/cpu/tile/build.h"
#include "engine/cpu/tile/head.h"
#include "graph/ops/pools.h"

namespace upweave::cpu {
namespace {

bool commutes(Op op) { return op == Op::kAdd || op == Op::kMul || op == Op::kMaximum || op == Op::kMinimum; }

// One way up; `taken` are the nodes on it.
class Walk {
 public:
  Walk(const HeadNodes& nodes, std::vector<Id>& taken) : nodes_(nodes), taken_(taken) {}

  // False if it ends at a value that is not in memory.
  bool climb(Id at, ConvSource& source) {
    source.dims = dims_of(nodes_.graph[at].shape);
    while (!nodes_.memory(at).exists()) {
      const Node& node = nodes_.graph[at];
      const bool waits = std::ranges::find(nodes_.rest, at) != nodes_.rest.end();
      if (!waits || nodes_.users[at].size() != 1 || source.pool) return false;
      taken_.push_back(at);
      Id next = node.in[0];
      if (pointwise_fn(node)) {
        if (!add_pointwise(node, source, next)) return false;
      } else if (is(node, Op::kNormalize)) {
        if (!add_normalize(node, source)) return false;
      } else if (!add_pool(node, source)) {
        return false;
      }
      at = next;
    }
    source.memory = nodes_.memory(at);
    return can_pack(source);
  }

 private:
  // Pools go channel by channel, or over what lies channels last.
  static bool can_pack(const ConvSource& source) {
    return !source.memory.tiled && (!source.pool || source.memory.channels_last() || turns(source));
  }

  bool add_pointwise(const Node& node, ConvSource& source, Id& next) {
    Step step{};
    step.what = Step::What::kPointwise;
    step.fn = *pointwise_fn(node);
    step.a = static_cast<float>(numbers(node).a);
    step.b = static_cast<float>(numbers(node).b);
    if (node.in.size() > 1 && node.in[1] != kNone) {
      Id other = node.in[1];
      if (!nodes_.memory(other).exists() && commutes(node.op->id)) std::swap(next, other);
      step.memory = nodes_.memory(other);
      if (!step.memory.exists()) return false;
      step.memory.dims = dims_of(broadcast_shape(nodes_.graph[other].shape, node.shape, "operand"));
      const bool same = step.memory.dims == dims_of(node.shape);
      if (step.memory.channels_last() ? !same : step.memory.tiled) return false;
    }
    if (node.shape != nodes_.graph[next].shape) return false;
    source.steps.insert(source.steps.begin(), step);
    return true;
  }

  // Statistics of values a channel of samples or the batch; the node's operands are value, statistics,
  // weight, bias.
  bool add_normalize(const Node& node, ConvSource& source) {
    const NormSets sets = norm_sets(node, nodes_.graph[node.in[0]].shape);
    const bool by_channel = sets.kind == NormSets::Kind::kInstance || sets.kind == NormSets::Kind::kGroup ||
                            sets.kind == NormSets::Kind::kBatch;
    Step step{};
    step.what = Step::What::kFactors;
    step.memory = nodes_.memory(node.in[1]);
    if (!by_channel || !step.memory.exists()) return false;
    step.eps = norm_eps(node);
    step.sets = sets.kind;
    step.groups = sets.groups;
    for (size_t slot = 2; slot < 4 && slot < node.in.size(); ++slot) {
      if (node.in[slot] == kNone) continue;
      Memory& to = slot == 2 ? step.weight : step.bias;
      to = nodes_.memory(node.in[slot]);
      if (!to.exists()) return false;
      to.dims = {1, count(nodes_.graph[node.in[slot]].shape), {1, 1, 1}};
    }
    source.steps.insert(source.steps.begin(), step);
    return true;
  }

  static bool add_pool(const Node& node, ConvSource& source) {
    if (!is_pool(node) || (node.in.size() > 1 && node.in[1] != kNone)) return false;
    const auto [window, stride] = pool_attrs(node);
    source.pool = true;
    source.pooling = is(node, Op::kAvgPool)   ? Pooling::kAvg
                     : is(node, Op::kMaxPool) ? Pooling::kMax
                                              : Pooling::kMin;
    source.window = extents_of(window, 1);
    source.stride = extents_of(stride, 1);
    return true;
  }

  const HeadNodes& nodes_;
  std::vector<Id>& taken_;
};

}  // namespace

std::vector<Id> take_head(const HeadNodes& nodes, Id conv, ConvStage& stage) {
  std::vector<Id> taken;
  const Id in = nodes.graph[conv].in[0];
  stage.in = dims_of(nodes.graph[in].shape);
  std::vector<ConvSource> sources;
  std::vector<Id> joined = {in};
  const bool waits = std::ranges::find(nodes.rest, in) != nodes.rest.end();
  if (is(nodes.graph[in], Op::kCat) && waits && nodes.users[in].size() == 1) {
    joined = nodes.graph[in].in;
    taken.push_back(in);
  }
  int64_t channels = 0;
  for (const Id at : joined) {
    ConvSource source;
    if (!Walk(nodes, taken).climb(at, source)) return {};
    source.c0 = channels;
    channels += source.dims.c;
    sources.push_back(std::move(source));
  }
  stage.sources = std::move(sources);
  return taken;
}

}  // namespace upweave::cpu
