#include "engine/cpu/tile_build.h"

#include <algorithm>
#include <numeric>

#include "graph/ops/reductions.h"

namespace upweave::cpu {
namespace {

constexpr int64_t kStreamBytes = int64_t{4} << 20;  // larger results go past the caches

std::optional<Fold> fold_of(std::string_view op) {
  if (op == "sum") return Fold::kSum;
  if (op == "mean") return Fold::kMean;
  if (op == "max") return Fold::kMax;
  if (op == "min") return Fold::kMin;
  if (op == "logsumexp") return Fold::kLogSumExp;
  return std::nullopt;
}

bool axes_are(const Node& node, std::string_view axes) {
  return node.attrs.has("axes") && node.attrs.word("axes") == axes;
}

}  // namespace

std::optional<Fn> pointwise_fn(const Node& node) {
  static const std::pair<std::string_view, Fn> kTable[] = {
      {"relu", Fn::kRelu},       {"leaky_relu", Fn::kLeakyRelu},
      {"clamp", Fn::kClamp},     {"hardtanh", Fn::kClamp},
      {"exp", Fn::kExp},         {"tanh", Fn::kTanh},
      {"sigmoid", Fn::kSigmoid}, {"swish", Fn::kSwish},
      {"mish", Fn::kMish},       {"hardswish", Fn::kHardswish},
      {"add", Fn::kAdd},         {"sub", Fn::kSub},
      {"mul", Fn::kMul},         {"div", Fn::kDiv},
      {"minimum", Fn::kMinimum}, {"maximum", Fn::kMaximum}};
  if (is(node, "gelu")) return node.attrs.flag("tanh") ? Fn::kGeluTanh : Fn::kGelu;
  for (const auto& [name, fn] : kTable) {
    if (node.op->name == name) return fn;
  }
  return std::nullopt;
}

void pointwise_numbers(const Node& node, float* a, float* b) {
  auto number = [&](std::string_view name) { return static_cast<float>(node.attrs.real(name)); };
  if (node.attrs.has("slope")) *a = number("slope");
  if (node.attrs.has("value")) *a = number("value");
  if (node.attrs.has("lo")) *a = number("lo"), *b = number("hi");
}

TileBuilder::TileBuilder(const Graph& graph, Layout layout, int64_t cache_bytes, Lookup memory, Lookup result,
                         std::function<bool(Id)> is_private)
    : graph_(graph),
      cache_(cache_bytes),
      memory_(std::move(memory)),
      result_(std::move(result)),
      private_(std::move(is_private)) {
  p_.layout = layout;
  slots_.assign(graph.nodes.size(), -1);
  loaded_ = slots_;
  reduced_.assign(graph.nodes.size(), false);
  absorbed_ = reduced_;
}

// What try_add may change, to be put back when it fails.
struct TileBuilder::Undo {
  explicit Undo(TileBuilder& b)
      : builder(b),
        loaded(b.loaded_),
        loads(b.loads_.size()),
        steps(b.steps_.size()),
        slots(b.p_.slots.size()),
        levels(b.p_.levels.size()),
        reductions(b.p_.reductions.size()),
        dims(b.p_.dims),
        multiple(b.p_.multiple),
        channel_multiple(b.p_.channel_multiple),
        whole(b.p_.whole),
        local_space(b.p_.local_space) {}
  void undo() {
    builder.loaded_ = std::move(loaded);
    builder.loads_.resize(loads, Step{});
    builder.steps_.resize(steps, Step{});
    builder.p_.slots.resize(slots);
    builder.p_.levels.resize(levels);
    builder.p_.reductions.resize(reductions);
    builder.p_.dims = dims;
    builder.p_.multiple = multiple;
    builder.p_.channel_multiple = channel_multiple;
    builder.p_.whole = whole;
    builder.p_.local_space = local_space;
  }
  TileBuilder& builder;
  std::vector<int> loaded;
  size_t loads, steps, slots, levels, reductions;
  Dims dims;
  Extents multiple;
  int64_t channel_multiple;
  std::array<bool, 3> whole;
  bool local_space;
};

void TileBuilder::begin_with(Id conv, std::unique_ptr<ConvStage> stage) {
  start(dims_of(graph_[conv].shape));
  p_.ld_channels = stage->kernel->channels_out();
  stage->out = new_slot(Kind::kFull, 0);
  slots_[static_cast<size_t>(conv)] = stage->out;
  p_.conv = std::move(stage);
  names_.emplace_back(graph_[conv].op->name);
  if (graph_[conv].in.size() > 2 && graph_[conv].in[2] != kNone) {
    const int bias = load(memory_(graph_[conv].in[2]));
    const int out = new_slot(Kind::kFull, 0);
    Step& s = push(Step::What::kPointwise, p_.conv->out, out);
    s.fn = Fn::kAdd;
    s.y = bias;
    slots_[static_cast<size_t>(conv)] = out;
  }
}

bool TileBuilder::add(Id id) {
  Undo undo(*this);
  if (try_add(id)) {
    names_.emplace_back(graph_[id].op->name);
    return true;
  }
  undo.undo();
  return false;
}

bool TileBuilder::try_add(Id id) {
  const Node& node = graph_[id];
  const std::string_view op = node.op->name;
  if (node.shape[0] == 0) return false;
  if (pointwise_fn(node)) return add_pointwise(id);
  if (op.ends_with("_pool")) return add_pool(id);
  if (op == "normalize") {
    const Id moments = node.in[1];
    const int local = slots_[static_cast<size_t>(moments)];
    const Memory memory = local >= 0 ? Memory{} : memory_(moments);
    if (reduced_[static_cast<size_t>(moments)]) return false;  // complete only behind this sweep
    return (local >= 0 || memory.exists()) && add_normalize(id, local, memory, 2);
  }
  if (op == "softmax_apply") return add_softmax_apply(id);
  if (axes_are(node, "channel")) return add_channel_op(id);
  if (axes_are(node, "last")) return add_norm_last(id);
  if (op == "moments" || op == "softmax_stats" || axes_are(node, "space")) return add_space_op(id);
  if (op == "group_norm" || op == "instance_norm") return add_space_norm(id);
  if (axes_are(node, "depth") || axes_are(node, "height") || axes_are(node, "width"))
    return add_axis_fold(id);
  return false;
}

// --- slots
// ---------------------------------------------------------------------------------------------------

bool TileBuilder::start(const Dims& dims) {
  if (!p_.levels.empty()) return true;
  p_.dims = dims;
  p_.ld_channels = padded(dims.c);
  p_.levels.push_back({{1, 1, 1}, dims.space});
  return true;
}

int TileBuilder::level_with(const Extents& extent) const {
  for (size_t l = 0; l < p_.levels.size(); ++l) {
    if (p_.levels[l].extent == extent) return static_cast<int>(l);
  }
  return -1;
}

// How a value of `dims` varies; *level: -1 if it says nothing of it, or a level given by whom it meets.
std::optional<Kind> TileBuilder::kind_of(const Dims& dims, int* level) const {
  if ((dims.n != 1 && dims.n != p_.dims.n) || (dims.c != 1 && dims.c != p_.dims.c)) return std::nullopt;
  const int exact = level_with(dims.space);
  const bool channels = dims.c == p_.dims.c;
  const Extents one = {1, 1, 1};
  if (*level < 0) *level = exact;
  if (*level < 0) return std::nullopt;
  const Extents& extent = p_.levels[static_cast<size_t>(*level)].extent;
  if (dims.space == extent) return channels ? Kind::kFull : Kind::kLine;
  if (dims.space == one) return channels && p_.dims.c > 1 ? Kind::kVector : Kind::kScalar;
  for (size_t a = 0; a < 3; ++a) {
    if (dims.space[a] != 1 && dims.space[a] != extent[a]) return std::nullopt;
  }
  return channels ? Kind::kFull : Kind::kLine;
}

int TileBuilder::new_slot(Kind kind, int level) {
  p_.slots.push_back({kind, level, -1, {}});
  return static_cast<int>(p_.slots.size()) - 1;
}

Step& TileBuilder::push(Step::What what, int x, int out) {
  Step s{};
  s.what = what;
  s.x = x;
  s.out = out;
  steps_.push_back(s);
  return steps_.back();
}

int TileBuilder::load(const Memory& from) {
  int level = level_with(from.dims.space);
  if (level < 0) level = 0;
  const auto kind = kind_of(from.dims, &level);
  if (!kind) return -1;
  Step s{};
  s.what = Step::What::kLoad;
  s.memory = from;
  s.out = new_slot(*kind, level);
  loads_.push_back(s);
  return s.out;
}

int TileBuilder::operand(Id id, const Shape& against) {
  const size_t i = static_cast<size_t>(id);
  if (reduced_[i]) return -1;
  if (slots_[i] >= 0) return p_.slots[static_cast<size_t>(slots_[i])].kind == Kind::kStats ? -1 : slots_[i];
  if (loaded_[i] >= 0) return loaded_[i];
  Memory from = memory_(id);
  if (!from.exists()) return -1;
  from.dims = dims_of(broadcast_shape(graph_[id].shape, against, "operand"));
  int level = level_with(dims_of(against).space);
  if (level < 0) return -1;
  const auto kind = kind_of(from.dims, &level);
  if (!kind) return -1;
  Step s{};
  s.what = Step::What::kLoad;
  s.memory = from;
  s.out = new_slot(*kind, level);
  loads_.push_back(s);
  // A full value is the same whoever reads it; a broadcast one depends on whom it meets.
  if (*kind == Kind::kFull && from.dims == dims_of(graph_[id].shape)) loaded_[i] = s.out;
  return s.out;
}

// --- operations
// ----------------------------------------------------------------------------------------------

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
  pointwise_numbers(node, &s.a, &s.b);
  slots_[static_cast<size_t>(id)] = s.out;
  return true;
}

bool TileBuilder::add_pool(Id id) {
  if (p_.layout != Layout::kChannelsLast) return false;
  const Node& node = graph_[id];
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
  const int from = p_.slots[static_cast<size_t>(x)].level;
  const Shape window = per_axis(node, "window", spatial_rank(in), 1);
  Step s{};
  s.what = Step::What::kPool;
  s.window = extents_of(window, 1);
  s.stride =
      node.attrs.has("stride") ? extents_of(per_axis(node, "stride", spatial_rank(in), 1), 1) : s.window;
  s.pooling = is(node, "avg_pool") ? Pooling::kAvg : is(node, "max_pool") ? Pooling::kMax : Pooling::kMin;
  Level level;
  level.extent = dims_of(node.shape).space;
  for (size_t a = 0; a < 3; ++a) {
    if (s.window[a] > s.stride[a]) return false;  // windows that overlap reach into other tiles
    level.stride[a] = p_.levels[static_cast<size_t>(from)].stride[a] * s.stride[a];
    p_.multiple[a] = std::lcm(p_.multiple[a], level.stride[a]);
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
  steps_.push_back(s);
  slots_[static_cast<size_t>(id)] = s.out;
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
      const size_t last = node.attrs.has("count") ? static_cast<size_t>(node.attrs.ints("count").front()) : 1;
      from.dims = {1, 1, extents_of(Shape(shape.end() - static_cast<int64_t>(last), shape.end()), 1)};
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
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  if (const auto fold = fold_of(node.op->name)) {
    Step& s = push(Step::What::kFoldChannels, x, new_slot(Kind::kLine, level));
    s.fold = *fold;
    slots_[static_cast<size_t>(id)] = s.out;
    return true;
  }
  const Step::What what = is(node, "softmax")      ? Step::What::kSoftmaxRows
                          : is(node, "rms_norm")   ? Step::What::kRmsNorm
                          : is(node, "layer_norm") ? Step::What::kLayerNorm
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
  if (!is(node, "layer_norm") && !is(node, "rms_norm")) return false;
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  const NormSets sets = norm_sets(node, in);
  const size_t axes = node.attrs.has("count") ? static_cast<size_t>(node.attrs.ints("count").front()) : 1;
  if (p_.layout == Layout::kChannelsLast) {
    if (!keep_whole(3 - axes, 2)) return false;
  } else {
    p_.local_space = true;
  }
  Step& s = push(Step::What::kNormLast, x, new_slot(Kind::kFull, level));
  s.trailing = sets.trailing;
  s.rms = is(node, "rms_norm");
  s.eps = norm_eps(node);
  const int out = s.out;
  slots_[static_cast<size_t>(id)] = out;
  return affine(id, out, 1, out);
}

bool TileBuilder::keep_whole(size_t first, size_t last) {
  for (size_t a = first; a <= last; ++a) p_.whole[a] = true;
  int64_t positions = 1;
  for (size_t a = 0; a < 3; ++a) positions *= p_.whole[a] ? p_.levels[0].extent[a] : p_.multiple[a];
  return positions * p_.ld_channels * 4 <= cache_ / 4;
}

// A reduction over one axis is a pool whose window is all of it.
bool TileBuilder::add_axis_fold(Id id) {
  if (p_.layout != Layout::kChannelsLast) return false;
  const Node& node = graph_[id];
  const auto fold = fold_of(node.op->name);
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (!fold || x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
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
  const std::string_view op = node.op->name;
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
  const int level = p_.slots[static_cast<size_t>(x)].level;
  const auto fold = fold_of(op);
  const bool moments = op == "moments";
  if (moments && norm_sets(node, in).kind == NormSets::Kind::kChannel) return false;
  Reduction reduction;
  reduction.level = level;
  if (moments) {
    const NormSets sets = norm_sets(node, in);
    reduction.what = Reduction::What::kMoments;
    reduction.sets = sets.kind;
    reduction.groups = sets.groups;
  } else if (op == "softmax_stats" || op == "logsumexp") {
    reduction.what = Reduction::What::kExpSum;
    if (fold) reduction.fold = *fold;
  } else if (fold) {
    reduction.fold = *fold;
  } else if (op != "softmax") {
    return false;
  }
  if (p_.layout == Layout::kChannelsFirst) {
    p_.local_space = true;
    if (op == "softmax_stats") {
      // Where nobody else wants them, the statistics are a part of the softmax that follows.
      if (!private_(id)) return false;
      absorbed_[static_cast<size_t>(id)] = true;
      return true;
    }
    if (op == "softmax") {
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
      p_.channel_multiple = std::lcm(p_.channel_multiple, s.groups);
      slots_[static_cast<size_t>(id)] = s.out;
      return true;
    }
  } else if (op == "softmax") {
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
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
  const NormSets sets = norm_sets(node, in);
  p_.local_space = true;
  Step& s = push(Step::What::kMoments, x, new_slot(Kind::kStats, 0));
  s.groups = sets.kind == NormSets::Kind::kGroup ? p_.dims.c / sets.groups : 1;
  p_.channel_multiple = std::lcm(p_.channel_multiple, s.groups);
  return add_normalize(id, s.out, {}, 1);
}

// (x - mean) / sqrt(var + eps) * weight + bias as one affine step, its factors made once a tile.
bool TileBuilder::add_normalize(Id id, int stats, const Memory& memory, size_t weight) {
  const Node& node = graph_[id];
  const Shape& in = graph_[node.in[0]].shape;
  start(dims_of(in));
  const int x = operand(node.in[0], in);
  if (x < 0 || p_.slots[static_cast<size_t>(x)].kind != Kind::kFull) return false;
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

void TileBuilder::store(Id id, const Memory& to) {
  start(dims_of(graph_[id].shape));
  Step s{};
  s.what = Step::What::kStore;
  s.x = slots_[static_cast<size_t>(id)];
  if (s.x < 0) {
    s.x = operand(id, graph_[id].shape);
    names_.emplace_back("copy");
  }
  if (p_.slots[static_cast<size_t>(s.x)].kind == Kind::kStats) {
    // Statistics of the tile's channels that others want too leave as shares, as if there were many tiles.
    const auto made = std::ranges::find_if(steps_, [&](const Step& step) { return step.out == s.x; });
    Reduction reduction;
    reduction.what = Reduction::What::kMoments;
    const NormSets sets = norm_sets(graph_[id], graph_[graph_[id].in[0]].shape);
    reduction.sets = sets.kind;
    reduction.groups = sets.groups;
    reduction.result = to;
    s.what = Step::What::kPartial;
    s.x = made->x;
    s.reduction = static_cast<int>(p_.reductions.size());
    p_.reductions.push_back(reduction);
    stores_.push_back(s);
    return;
  }
  s.memory = to;
  s.stream = to.dims.count() * size_of(to.type) > kStreamBytes;
  stores_.push_back(s);
}

// --- buffers
// -------------------------------------------------------------------------------------------------

// A slot's buffer is free again behind its last reader; a step that goes row by row may write over what it
// reads.
void TileBuilder::assign_buffers() {
  std::vector<size_t> last_use(p_.slots.size(), 0);
  for (size_t i = 0; i < p_.steps.size(); ++i) {
    const Step& s = p_.steps[i];
    for (const int id : {s.x, s.y, s.z, s.w, s.out}) {
      if (id >= 0) last_use[static_cast<size_t>(id)] = i;
    }
  }
  std::vector<int> free;
  auto lent = [&](int id) { return p_.slots[static_cast<size_t>(id)].lent.exists(); };
  // Channels first, a line is computed along the first row and read along all of them: it keeps its buffer.
  auto kept = [&](const Slot& slot) {
    return p_.layout == Layout::kChannelsFirst && slot.kind == Kind::kLine;
  };
  auto take = [&](int id) {
    Slot& slot = p_.slots[static_cast<size_t>(id)];
    if (slot.buffer >= 0) return;
    const auto it = std::ranges::find_if(free, [&](int b) {
      return p_.buffer_kind[static_cast<size_t>(b)] == slot.kind &&
             (p_.buffer_level[static_cast<size_t>(b)] == slot.level || slot.kind > Kind::kLine);
    });
    if (it != free.end()) {
      slot.buffer = *it;
      free.erase(it);
      return;
    }
    slot.buffer = p_.buffers++;
    p_.buffer_kind.push_back(slot.kind);
    p_.buffer_level.push_back(slot.level);
  };
  if (p_.conv) take(p_.conv->out);
  for (size_t i = 0; i < p_.steps.size(); ++i) {
    const Step& s = p_.steps[i];
    const bool in_place = (s.row_local(Layout::kChannelsLast) && s.what != Step::What::kFoldChannels) ||
                          (s.what == Step::What::kNormLast && p_.layout == Layout::kChannelsLast);
    std::vector<int> dead;
    for (const int id : {s.x, s.y, s.z, s.w}) {
      if (id < 0 || last_use[static_cast<size_t>(id)] != i || lent(id)) continue;
      if (std::ranges::find(dead, id) == dead.end()) dead.push_back(id);
    }
    if (s.what == Step::What::kFactors || s.what == Step::What::kExpFactors) {
      for (const int id : {s.y, s.z, s.w}) {
        if (id >= 0) take(id);
      }
    }
    if (s.out >= 0 && p_.slots[static_cast<size_t>(s.out)].buffer < 0) {
      Slot& out = p_.slots[static_cast<size_t>(s.out)];
      const auto same = std::ranges::find_if(dead, [&](int id) {
        const Slot& slot = p_.slots[static_cast<size_t>(id)];
        return in_place && slot.kind == out.kind && slot.level == out.level && !kept(slot);
      });
      if (same != dead.end()) {
        out.buffer = p_.slots[static_cast<size_t>(*same)].buffer;
        dead.erase(same);
      } else {
        take(s.out);
      }
    }
    for (const int id : dead) {
      if (!kept(p_.slots[static_cast<size_t>(id)])) free.push_back(p_.slots[static_cast<size_t>(id)].buffer);
    }
  }
}

// Float32 values that only row-local steps read need no copy of their own, channels first.
void TileBuilder::lend() {
  if (p_.layout != Layout::kChannelsFirst || p_.dims.voxels() % kLane != 0) return;
  std::erase_if(loads_, [&](const Step& load) {
    Slot& slot = p_.slots[static_cast<size_t>(load.out)];
    if (slot.kind != Kind::kFull || load.memory.type != Dtype::kF32 || load.memory.dims != p_.dims)
      return false;
    for (const std::vector<Step>* steps : {&steps_, &stores_}) {
      for (const Step& s : *steps) {
        const bool reads = s.x == load.out || s.y == load.out || s.z == load.out || s.w == load.out;
        if (s.out == load.out || (reads && s.what != Step::What::kPointwise && s.what != Step::What::kAffine))
          return false;
      }
    }
    slot.lent = load.memory;
    return true;
  });
}

TileProgram TileBuilder::finish() {
  lend();
  p_.steps = loads_;
  p_.steps.insert(p_.steps.end(), steps_.begin(), steps_.end());
  p_.steps.insert(p_.steps.end(), stores_.begin(), stores_.end());
  assign_buffers();
  p_.text = fmt::format("{}", fmt::join(names_, " | "));
  return std::move(p_);
}

}  // namespace upweave::cpu
