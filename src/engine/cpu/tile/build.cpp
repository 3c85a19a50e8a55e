#include "engine/cpu/tile/build.h"

#include <algorithm>

namespace upweave::cpu {
namespace {

constexpr int64_t kStreamBytes = int64_t{2} << 20;  // larger results go past the caches

}  // namespace

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
  if (from.channels_last() && from.dims != dims_of(graph_[id].shape)) return -1;  // its axes mean others here
  int level = level_with(dims_of(against).space);
  if (level < 0) return -1;
  const auto kind = kind_of(from.dims, &level);
  if (!kind) return -1;
  Step s{};
  s.what = Step::What::kLoad;
  s.memory = from;
  s.out = new_slot(*kind, level);
  loads_.push_back(s);
  // A full value is the same whoever reads it; a broadcast one has the extents of whom it meets.
  if (*kind == Kind::kFull && dims_of(graph_[id].shape) == dims_of(against)) loaded_[i] = s.out;
  return s.out;
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
  s.stream = to.dims.count() * to.element_bytes() > kStreamBytes;
  stores_.push_back(s);
}

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
  auto aliased = [&](int id) { return p_.slots[static_cast<size_t>(id)].alias.exists(); };
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
  if (p_.conv && !aliased(p_.conv->out)) take(p_.conv->out);
  for (size_t i = 0; i < p_.steps.size(); ++i) {
    const Step& s = p_.steps[i];
    const bool in_place = (s.row_local(Layout::kChannelsLast) && s.what != Step::What::kFoldChannels) ||
                          (s.what == Step::What::kNormLast && p_.layout == Layout::kChannelsLast);
    std::vector<int> dead;
    for (const int id : {s.x, s.y, s.z, s.w}) {
      if (id < 0 || last_use[static_cast<size_t>(id)] != i || aliased(id)) continue;
      if (std::ranges::find(dead, id) == dead.end()) dead.push_back(id);
    }
    if (s.what == Step::What::kFactors || s.what == Step::What::kExpFactors) {
      for (const int id : {s.y, s.z, s.w}) {
        if (id >= 0) take(id);
      }
    }
    if (s.out >= 0 && p_.slots[static_cast<size_t>(s.out)].buffer < 0 && !aliased(s.out)) {
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

// Values that only row-local steps read need no copy of their own: float32 rows, channels first, and the
// tiles of a launch before this one. A result that takes the place of such rows is written there as it is
// computed: reads and writes then overlap, and the lines are at hand.
void TileBuilder::alias_memory() {
  const bool rows = p_.layout == Layout::kChannelsFirst && p_.dims.voxels() % kLane == 0;
  auto fits = [&](const Slot& slot, const Memory& memory) {
    return slot.kind == Kind::kFull && memory.type == Dtype::kF32 && !memory.split() &&
           !memory.channels_last() && memory.dims == p_.dims && (rows || memory.tiled);
  };
  auto row_local = [](const Step& s) {
    using What = Step::What;
    return s.what == What::kPointwise || s.what == What::kAffine || s.what == What::kScale;
  };
  auto reads = [](const Step& s, int slot) {
    return s.x == slot || s.y == slot || s.z == slot || s.w == slot;
  };
  std::vector<Memory> aliased;
  std::erase_if(loads_, [&](const Step& load) {
    Slot& slot = p_.slots[static_cast<size_t>(load.out)];
    if (!fits(slot, load.memory)) return false;
    for (const std::vector<Step>* steps : {&steps_, &stores_}) {
      for (const Step& s : *steps) {
        if (s.out == load.out || (reads(s, load.out) && !row_local(s))) return false;
      }
    }
    slot.alias = load.memory;
    if (load.memory.tiled) p_.tile = load.memory.tile;
    aliased.push_back(load.memory);
    return true;
  });
  // What is kept for the next launch, tile after tile, is computed in its place.
  std::erase_if(stores_, [&](const Step& store) {
    Slot& slot = p_.slots[static_cast<size_t>(store.x)];
    if (store.what != Step::What::kStore || !store.memory.tiled) return false;
    slot.alias = store.memory;
    return true;
  });
  if (steps_.empty() || stores_.size() != 1 || !rows) return;
  const Step& store = stores_.front();
  Slot& slot = p_.slots[static_cast<size_t>(store.x)];
  // Written by the last step of all: whatever else reads the old rows has done so.
  const bool in_place = std::ranges::any_of(aliased, [&](const Memory& from) {
    return from.where == store.memory.where && from.offset == store.memory.offset;
  });
  if (in_place && fits(slot, store.memory) && steps_.back().out == store.x &&
      std::ranges::all_of(steps_, row_local)) {
    slot.alias = store.memory;
    stores_.clear();
  }
}

TileProgram TileBuilder::finish() {
  alias_memory();
  p_.steps = loads_;
  p_.steps.insert(p_.steps.end(), steps_.begin(), steps_.end());
  p_.steps.insert(p_.steps.end(), stores_.begin(), stores_.end());
  assign_buffers();
  p_.text = fmt::format("{}", fmt::join(names_, " | "));
  return std::move(p_);
}

}  // namespace upweave::cpu
