// What each operation becomes in a tile program.
#include <algorithm>
#include <numeric>

#include "engine/cpu/tile/build.h"
#include "graph/ops/pools.h"
#include "graph/ops/reductions.h"

namespace upweave::cpu {
namespace {

std::optional<Fold> fold_of(Op op) {
  if (op == Op::kSum) return Fold::kSum;
  if (op == Op::kMean) return Fold::kMean;
  if (op == Op::kMax) return Fold::kMax;
  if (op == Op::kMin) return Fold::kMin;
  if (op == Op::kLogsumexp) return Fold::kLogSumExp;
  return std::nullopt;
}

bool read_once(const Graph& graph, Id id) {
  int64_t readers = is_output(graph, id);
  for (const Node& node : graph.nodes) readers += std::ranges::count(node.in, id);
  return readers == 1;
}

bool axes_are(const Node& node, std::string_view axes) {
  return node.attrs.has("axes") && node.attrs.word("axes") == axes;
}

}  // namespace

std::optional<Fn> pointwise_fn(const Node& node) {
  if (!is(node, Family::kPointwise)) return std::nullopt;
  const Fn fn = is(node, Op::kHardtanh)                          ? Fn::kClamp
                : is(node, Op::kGelu) && node.attrs.flag("tanh") ? Fn::kGeluTanh
                                                                 : fn_of(node.op->id);
  const bool known = pointwise(fn, 0, 0, {}, {}, nullptr, 0, 0, 0);
  return known ? std::optional(fn) : std::nullopt;
}

bool TileBuilder::try_add(Id id) {
  const Node& node = graph_[id];
  const Op op = node.op->id;
  if (node.shape[0] == 0) return false;
  if (pointwise_fn(node)) return add_pointwise(id);
  if (is_pool(node)) return add_pool(id);
  if (op == Op::kNormalize) {
    const Id moments = node.in[1];
    const int local = slots_[static_cast<size_t>(moments)];
    const Memory memory = local >= 0 ? Memory{} : memory_(moments);
    if (reduced_[static_cast<size_t>(moments)]) return false;  // complete only behind this sweep
    return (local >= 0 || memory.exists()) && add_normalize(id, local, memory, 2);
  }
  if (op == Op::kSoftmaxApply) return add_softmax_apply(id);
  if (axes_are(node, "channel")) return add_channel_op(id);
  if (axes_are(node, "last")) return add_norm_last(id);
  if (op == Op::kMoments || op == Op::kSoftmaxStats || axes_are(node, "space")) return add_space_op(id);
  if (op == Op::kGroupNorm || op == Op::kInstanceNorm) return add_space_norm(id);
  if (axes_are(node, "depth") || axes_are(node, "height") || axes_are(node, "width"))
    return add_axis_fold(id);
  return false;
}

bool TileBuilder::add_pointwise(Id id) {
  const Node& node = graph_[id];
  start(dims_of(node.shape));
  const bool two = node.in.size() > 1 && node.in[1] != kNone;
  const int x = operand(node.in[0], node.shape), y = two ? operand(node.in[1], node.shape) : -1;
  if (x < 0 || (two && y < 0)) return false;
  int level = -1;
  bool full = false, line = false, vector = false;
  for (const int s : {x, y}) {
    if (s < 0) continue;
    const Slot& slot = p_.slots[static_cast<size_t>(s)];
    if (slot.kind == Kind::kFull || slot.kind == Kind::kLine) {
      if (level >= 0 && level != slot.level) return false;
      level = slot.level;
    }
    full = full || slot.kind == Kind::kFull;
    line = line || slot.kind == Kind::kLine;
    vector = vector || slot.kind == Kind::kVector;
  }
  const Kind kind = full || (line && vector) ? Kind::kFull
                    : line                   ? Kind::kLine
                    : vector                 ? Kind::kVector
                                             : Kind::kScalar;
  if (dims_of(node.shape).n != p_.dims.n) return false;
  Step& s = push(Step::What::kPointwise, x, new_slot(kind, std::max(level, 0)));
  s.fn = *pointwise_fn(node);
  s.y = y;
  s.a = static_cast<float>(numbers(node).a);
  s.b = static_cast<float>(numbers(node).b);
  slots_[static_cast<size_t>(id)] = s.out;
  if (s.fn == Fn::kExp) join_clamped_exp(id);
  if (s.fn == Fn::kMul) join_scale(id);
  return true;
}

// clamp lo hi | sub hi | exp, which a softmax behind a clamp becomes, is one function if the range is short.
void TileBuilder::join_clamped_exp(Id exp) {
  const Id sub = graph_[exp].in[0], clamp = is(graph_[sub], Op::kSub) ? graph_[sub].in[0] : kNone;
  if (steps_.size() < 3 || clamp == kNone || pointwise_fn(graph_[clamp]) != Fn::kClamp) return;
  Step* last = steps_.data() + steps_.size() - 3;
  const bool follow = last[0].out == slots_[static_cast<size_t>(clamp)] && last[1].x == last[0].out &&
                      last[1].out == slots_[static_cast<size_t>(sub)] && last[2].x == last[1].out;
  if (!follow || !read_once(graph_, clamp) || !read_once(graph_, sub) || last[1].y >= 0 ||
      last[1].a != last[0].b || !(last[0].b - last[0].a <= 1)) {
    return;
  }
  last[0].fn = Fn::kExpBelow;
  last[0].out = last[2].out;
  steps_.resize(steps_.size() - 2, Step{});
}

// div sums | mul weights, a value a channel each, is one sweep.
void TileBuilder::join_scale(Id mul) {
  const Id div = graph_[mul].in[0];
  if (steps_.size() < 2 || pointwise_fn(graph_[div]) != Fn::kDiv || !read_once(graph_, div)) return;
  Step* last = steps_.data() + steps_.size() - 2;
  auto kind = [&](int s) { return s < 0 ? Kind::kScalar : p_.slots[static_cast<size_t>(s)].kind; };
  if (last[0].out != slots_[static_cast<size_t>(div)] || last[1].x != last[0].out ||
      kind(last[1].out) != Kind::kFull || kind(last[0].x) != Kind::kFull ||
      kind(last[0].y) != Kind::kVector || kind(last[1].y) != Kind::kVector) {
    return;
  }
  last[0].what = Step::What::kScale;
  last[0].z = last[1].y;
  last[0].out = last[1].out;
  steps_.pop_back();
}

int TileBuilder::full_operand(Id id) {
  const Shape& shape = graph_[id].shape;
  start(dims_of(shape));
  const int x = operand(id, shape);
  return x >= 0 && p_.slots[static_cast<size_t>(x)].kind == Kind::kFull ? x : -1;
}

bool TileBuilder::add_pool(Id id) {
  if (p_.layout != Layout::kChannelsLast) return false;
  const Node& node = graph_[id];
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const int from = p_.slots[static_cast<size_t>(x)].level;
  const auto [window, stride] = pool_attrs(node);
  Step s{};
  s.what = Step::What::kPool;
  s.window = extents_of(window, 1);
  s.stride = extents_of(stride, 1);
  s.pooling = is(node, Op::kAvgPool) ? Pooling::kAvg : is(node, Op::kMaxPool) ? Pooling::kMax : Pooling::kMin;
  Level level;
  level.extent = dims_of(node.shape).space;
  for (size_t a = 0; a < 3; ++a) {
    if (s.window[a] > s.stride[a]) return false;  // windows that overlap reach into other tiles
    level.stride[a] = p_.levels[static_cast<size_t>(from)].stride[a] * s.stride[a];
    p_.multiple[a] = common_multiple(p_.multiple[a], level.stride[a]);
  }
  if (node.in.size() > 1 && node.in[1] != kNone) {
    Memory sign = memory_(node.in[1]);
    if (!sign.exists() || p_.dims.c == 1) return false;
    sign.dims = dims_of(broadcast_shape(graph_[node.in[1]].shape, node.shape, "sign"));
    if (sign.dims.space != Extents{1, 1, 1} || sign.dims.c != p_.dims.c || sign.dims.n != 1) return false;
    Step l{};
    l.what = Step::What::kLoad;
    l.memory = sign;
    l.out = new_slot(Kind::kVector, 0);
    loads_.push_back(l);
    Step& turn = push(Step::What::kPointwise, l.out, new_slot(Kind::kVector, 0));
    turn.fn = Fn::kSign;
    s.y = turn.out;
  }
  p_.levels.push_back(level);
  s.x = x;
  s.out = new_slot(Kind::kFull, static_cast<int>(p_.levels.size()) - 1);
  slots_[static_cast<size_t>(id)] = s.out;
  if (!join_norm(node.in[0], s)) steps_.push_back(s);
  return true;
}

// A channel norm that only an average pool reads is done on the way into its windows.
bool TileBuilder::join_norm(Id norm, const Step& pool) {
  if (steps_.empty() || pool.pooling != Pooling::kAvg || pool.window != pool.stride) return false;
  Step& last = steps_.back();
  const bool rms = last.what == Step::What::kRmsNorm;
  if ((!rms && last.what != Step::What::kLayerNorm) || last.out != pool.x || !read_once(graph_, norm))
    return false;
  if (pool.window[2] > kLane || pool.window[0] * pool.window[1] > kNormPoolLines) return false;
  last.what = Step::What::kNormPool;
  last.rms = rms;
  last.window = pool.window;
  last.out = pool.out;
  return true;
}

// x * weight + bias, where they are given: values per channel. The result goes to `out`.
bool TileBuilder::affine(Id id, int x, size_t weight, int out) {
  const Node& node = graph_[id];
  for (size_t slot = weight; slot < weight + 2 && slot < node.in.size(); ++slot) {
    if (node.in[slot] == kNone) continue;
    Memory from = memory_(node.in[slot]);
    if (!from.exists()) return false;
    from.dims = {1, p_.dims.c, {1, 1, 1}};
    if (axes_are(node, "last")) {
      const Shape& shape = graph_[node.in[0]].shape;
      from.dims = {1, 1, extents_of(Shape(shape.end() - norm_attrs(node).count, shape.end()), 1)};
    }
    int level = p_.slots[static_cast<size_t>(out)].level;
    const auto kind = kind_of(from.dims, &level);
    if (!kind) return false;
    Step l{};
    l.what = Step::What::kLoad;
    l.memory = from;
    l.out = new_slot(*kind, level);
    loads_.push_back(l);
    Step& s = push(Step::What::kPointwise, x, out);
    s.fn = slot == weight ? Fn::kMul : Fn::kAdd;
    s.y = l.out;
    x = out;
  }
  return true;
}

bool TileBuilder::add_channel_op(Id id) {
  if (p_.layout != Layout::kChannelsLast) return false;
  const Node& node = graph_[id];
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  if (const auto fold = fold_of(node.op->id)) {
    Step& s = push(Step::What::kFoldChannels, x, new_slot(Kind::kLine, level));
    s.fold = *fold;
    slots_[static_cast<size_t>(id)] = s.out;
    return true;
  }
  const Step::What what = is(node, Op::kSoftmax)     ? Step::What::kSoftmaxRows
                          : is(node, Op::kRmsNorm)   ? Step::What::kRmsNorm
                          : is(node, Op::kLayerNorm) ? Step::What::kLayerNorm
                                                     : Step::What::kStore;
  if (what == Step::What::kStore) return false;
  Step& s = push(what, x, new_slot(Kind::kFull, level));
  const int out = s.out;
  if (what != Step::What::kSoftmaxRows) {
    s.eps = norm_eps(node);
    if (!affine(id, out, 1, out)) return false;
  }
  slots_[static_cast<size_t>(id)] = out;
  return true;
}

bool TileBuilder::add_norm_last(Id id) {
  const Node& node = graph_[id];
  if (!is(node, Op::kLayerNorm) && !is(node, Op::kRmsNorm)) return false;
  const Shape& in = graph_[node.in[0]].shape;
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  const NormSets sets = norm_sets(node, in);
  const auto axes = static_cast<size_t>(norm_attrs(node).count);
  if (p_.layout == Layout::kChannelsLast) {
    if (!keep_whole(3 - axes, 2)) return false;
  } else {
    p_.local_space = true;
  }
  Step& s = push(Step::What::kNormLast, x, new_slot(Kind::kFull, level));
  s.trailing = sets.trailing;
  s.rms = is(node, Op::kRmsNorm);
  s.eps = norm_eps(node);
  const int out = s.out;
  slots_[static_cast<size_t>(id)] = out;
  return affine(id, out, 1, out);
}

bool TileBuilder::keep_whole(size_t first, size_t last) {
  for (size_t a = first; a <= last; ++a) p_.whole[a] = true;
  int64_t positions = 1;
  for (size_t a = 0; a < 3; ++a) {
    const int64_t all = p_.levels[0].extent[a];
    positions *= p_.whole[a] ? all : std::min(all, p_.multiple[a]);
  }
  return positions * p_.ld_channels * 4 <= cache_ / 4;
}

// A reduction over one axis is a pool whose window is all of it.
bool TileBuilder::add_axis_fold(Id id) {
  if (p_.layout != Layout::kChannelsLast) return false;
  const Node& node = graph_[id];
  const auto fold = fold_of(node.op->id);
  const int x = full_operand(node.in[0]);
  if (!fold || x < 0) return false;
  const size_t axis = axes_are(node, "depth") ? 0 : axes_are(node, "height") ? 1 : 2;
  const Level& from = p_.levels[static_cast<size_t>(p_.slots[static_cast<size_t>(x)].level)];
  if (from.extent[axis] > 512 || !keep_whole(axis, axis)) return false;  // long sums belong in float64
  Level level = from;
  level.stride[axis] = p_.levels[0].extent[axis];
  level.extent[axis] = 1;
  Step s{};
  s.what = Step::What::kPool;
  s.pooling = *fold == Fold::kSum    ? Pooling::kSum
              : *fold == Fold::kMean ? Pooling::kAvg
              : *fold == Fold::kMax  ? Pooling::kMax
                                     : Pooling::kMin;
  s.window[axis] = s.stride[axis] = from.extent[axis];
  s.x = x;
  p_.levels.push_back(level);
  s.out = new_slot(Kind::kFull, static_cast<int>(p_.levels.size()) - 1);
  steps_.push_back(s);
  slots_[static_cast<size_t>(id)] = s.out;
  return true;
}

bool TileBuilder::add_space_op(Id id) {
  const Node& node = graph_[id];
  const Op op = node.op->id;
  const Shape& in = graph_[node.in[0]].shape;
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  const auto fold = fold_of(op);
  const bool moments = op == Op::kMoments;
  if (moments && norm_sets(node, in).kind == NormSets::Kind::kChannel) return false;
  Reduction reduction;
  reduction.level = level;
  if (moments) {
    const NormSets sets = norm_sets(node, in);
    reduction.what = Reduction::What::kMoments;
    reduction.sets = sets.kind;
    reduction.groups = sets.groups;
  } else if (op == Op::kSoftmaxStats || op == Op::kLogsumexp) {
    reduction.what = Reduction::What::kExpSum;
    if (fold) reduction.fold = *fold;
  } else if (fold) {
    reduction.fold = *fold;
  } else if (op != Op::kSoftmax) {
    return false;
  }
  if (p_.layout == Layout::kChannelsFirst) {
    p_.local_space = true;
    if (op == Op::kSoftmaxStats) {
      // Where nobody else wants them, the statistics are a part of the softmax that follows.
      if (!private_(id)) return false;
      absorbed_[static_cast<size_t>(id)] = true;
      return true;
    }
    if (op == Op::kSoftmax) {
      slots_[static_cast<size_t>(id)] = push(Step::What::kSoftmaxRows, x, new_slot(Kind::kFull, level)).out;
      return true;
    }
    if (fold) {
      Step& s =
          push(Step::What::kFoldSpace, x, new_slot(p_.dims.c > 1 ? Kind::kVector : Kind::kScalar, level));
      s.fold = *fold;
      slots_[static_cast<size_t>(id)] = s.out;
      return true;
    }
    if (reduction.sets != NormSets::Kind::kBatch) {
      Step& s = push(Step::What::kMoments, x, new_slot(Kind::kStats, level));
      s.groups = reduction.sets == NormSets::Kind::kGroup ? p_.dims.c / reduction.groups : 1;
      p_.channel_multiple = common_multiple(p_.channel_multiple, s.groups);
      slots_[static_cast<size_t>(id)] = s.out;
      return true;
    }
  } else if (op == Op::kSoftmax) {
    return false;
  }
  reduction.result = result_(id);
  Step& s = push(Step::What::kPartial, x, -1);
  s.reduction = static_cast<int>(p_.reductions.size());
  p_.reductions.push_back(reduction);
  reduced_[static_cast<size_t>(id)] = true;
  return true;
}

bool TileBuilder::add_space_norm(Id id) {
  if (p_.layout != Layout::kChannelsFirst) return false;
  const Node& node = graph_[id];
  const Shape& in = graph_[node.in[0]].shape;
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const NormSets sets = norm_sets(node, in);
  p_.local_space = true;
  Step& s = push(Step::What::kMoments, x, new_slot(Kind::kStats, 0));
  s.groups = sets.kind == NormSets::Kind::kGroup ? p_.dims.c / sets.groups : 1;
  p_.channel_multiple = common_multiple(p_.channel_multiple, s.groups);
  return add_normalize(id, s.out, {}, 1);
}

// (x - mean) / sqrt(var + eps) * weight + bias as one affine step, its factors made once a tile.
bool TileBuilder::add_normalize(Id id, int stats, const Memory& memory, size_t weight) {
  const Node& node = graph_[id];
  const Shape& in = graph_[node.in[0]].shape;
  const int x = full_operand(node.in[0]);
  if (x < 0) return false;
  const NormSets sets = norm_sets(node, in);
  Step s{};
  s.what = Step::What::kFactors;
  s.x = stats;
  s.memory = memory;
  s.eps = norm_eps(node);
  s.sets = sets.kind;
  s.groups = sets.groups;
  for (size_t slot = weight; slot < weight + 2 && slot < node.in.size(); ++slot) {
    if (node.in[slot] == kNone) continue;
    Memory& to = slot == weight ? s.weight : s.bias;
    to = memory_(node.in[slot]);
    if (!to.exists()) return false;
    to.dims = {1, count(graph_[node.in[slot]].shape), {1, 1, 1}};
  }
  s.y = new_slot(Kind::kVector, 0);
  s.z = new_slot(Kind::kVector, 0);
  s.w = new_slot(Kind::kVector, 0);
  steps_.push_back(s);
  Step& a = push(Step::What::kAffine, x, new_slot(Kind::kFull, p_.slots[static_cast<size_t>(x)].level));
  a.y = s.y;
  a.z = s.z;
  a.w = s.w;
  slots_[static_cast<size_t>(id)] = a.out;
  return true;
}

bool TileBuilder::add_softmax_apply(Id id) {
  const Node& node = graph_[id];
  if (!axes_are(node, "space")) return false;
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x >= 0 && absorbed_[static_cast<size_t>(node.in[1])] && graph_[node.in[1]].in[0] == node.in[0]) {
    const int level = p_.slots[static_cast<size_t>(x)].level;
    slots_[static_cast<size_t>(id)] = push(Step::What::kSoftmaxRows, x, new_slot(Kind::kFull, level)).out;
    return true;
  }
  const Memory stats = reduced_[static_cast<size_t>(node.in[1])] ? Memory{} : memory_(node.in[1]);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull || !stats.exists()) return false;
  Step f{};
  f.what = Step::What::kExpFactors;
  f.memory = stats;
  f.y = new_slot(Kind::kVector, 0);
  f.z = new_slot(Kind::kVector, 0);
  steps_.push_back(f);
  const int out = new_slot(Kind::kFull, p_.slots[static_cast<size_t>(x)].level);
  Step& sub = push(Step::What::kPointwise, x, out);
  sub.fn = Fn::kSub;
  sub.y = f.y;
  push(Step::What::kPointwise, out, out).fn = Fn::kExp;
  Step& mul = push(Step::What::kPointwise, out, out);
  mul.fn = Fn::kMul;
  mul.y = f.z;
  slots_[static_cast<size_t>(id)] = out;
  return true;
}

}  // namespace upweave::cpu
