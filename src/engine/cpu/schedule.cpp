#include "engine/cpu/schedule.h"

#include <omp.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "base/checked.h"
#include "base/threads.h"
#include "engine/cpu/micro_batch.h"
#include "engine/cpu/node_launch.h"
#include "engine/cpu/slices.h"
#include "engine/cpu/take_head.h"
#include "graph/ops/conv_transpose.h"
#include "graph/ops/pools.h"

namespace upweave::cpu {
namespace {

bool contains(const std::vector<Id>& ids, Id id) { return std::ranges::find(ids, id) != ids.end(); }

// Leading axes that the tensor does not have get extent 1, stride 1, padding 0.
ConvShape conv_shape(const ConvGeometry& g) {
  ConvShape s;
  s.c_in = g.c_in;
  s.c_out = g.c_out;
  s.groups = g.groups;
  s.kernel = extents_of(g.kernel, 1);
  s.stride = extents_of(g.stride, 1);
  s.dilation = extents_of(g.dilation, 1);
  s.padding = extents_of(g.padding, 0);
  s.step = extents_of(g.step, 1);
  s.in = extents_of(g.in, 1);
  s.out = extents_of(g.out, 1);
  return s;
}

// Outputs of the convolution that pools behind it take together, along each axis.
Extents pooled_together(const Graph& graph, Id conv, const std::vector<Id>& rest) {
  Extents all = {1, 1, 1};
  std::map<Id, Extents> stride = {{conv, all}};
  for (const Id id : rest) {
    const Node& node = graph[id];
    const auto from = stride.find(node.in[0]);
    if (from == stride.end()) continue;
    Extents s = from->second;
    if (is_pool(node)) {
      const Extents step = extents_of(pool_attrs(node).stride, 1);
      for (size_t a = 0; a < 3; ++a) {
        s[a] *= step[a];
        all[a] = common_multiple(all[a], s[a]);
      }
    }
    stride[id] = s;
  }
  return all;
}

// What a kernel is chosen by, for the convolution with `rest` behind it.
ConvShape kernel_shape(const Graph& graph, Id conv, const std::vector<Id>& rest, int64_t blocks) {
  ConvShape shape = conv_shape(conv_geometry(graph, graph[conv]));
  shape.window = pooled_together(graph, conv, rest);
  shape.blocks = blocks;
  return shape;
}

// Weights that are bfloat16 if parameters are: as they were given, or turned around.
bool as_given(const Graph& graph, Id id) {
  return is_param(graph, is(graph[id], Op::kFlip) ? graph[id].in[0] : id);
}

class Scheduler {
 public:
  Scheduler(const FusedPlan& plan, const Options& options)
      : plan_(plan),
        graph_(plan.part.graph),
        options_(options),
        blocks_(std::max<int64_t>(1, plan.part.blocks)),
        users_(users(plan.graph)),
        cache_(cache_bytes_per_core()) {
    memory_.resize(graph_.nodes.size());
    lifetime_.assign(graph_.nodes.size(), kNone);
    for (Id id = 0; is_input(graph_, id); ++id) memory_[id] = input_place(id);
  }

  Schedule run() {
    for (size_t p = 0; p < plan_.passes.size(); ++p) schedule_pass(p);
    const Id out = graph_.output;
    if (memory_[out].where != Memory::Where::kOutput) {  // the input itself, or a parameter
      const std::vector<Id> nothing;
      TileBuilder builder = make_builder(Layout::kChannelsFirst, nothing);
      builder.store(out, place(out));
      result_.launches.push_back(make_tile_launch(builder.finish(), cache_));
    }
    return std::move(result_);
  }

 private:
  // --- places

  // `source` has the shapes of the whole batch: one sample for all of it is read from its start by each part.
  Memory input_place(Id id) const {
    Memory m{Memory::Where::kInput, id, options_.dtype, dims_of(graph_[id].shape)};
    if (plan_.source[id].shape[0] > 1) m.sample_bytes = m.dims.c * m.dims.voxels() * size_of(m.type);
    return m;
  }

  Memory extra_place(Id id) const {
    const Dtype type = plan_.places[id].dtype;
    const auto at = std::ranges::find(graph_.extra_outputs, id, &Output::value);
    Memory m{Memory::Where::kExtraOutput, at - graph_.extra_outputs.begin() + 1, type,
             dims_of(graph_[id].shape)};
    if (!is_statistics(graph_[id])) m.sample_bytes = m.dims.c * m.dims.voxels() * size_of(type);
    return m;
  }

  // Where the plan says that a value lies. What it does not know to be stored, because a pass takes several
  // launches, lies in the workspace. Before offsets are assigned, each value has some of its own.
  Memory place(Id id) {
    if (memory_[id].exists()) return memory_[id];
    const Place& place = plan_.places[id];
    Memory m{Memory::Where::kWorkspace, 0, place.dtype, dims_of(graph_[id].shape)};
    const int64_t offset = place.offset >= 0 ? place.offset : 64 * int64_t{id};
    switch (place.kind) {
      case Place::Kind::kExtraOutput:
        return memory_[id] = extra_place(id);
      case Place::Kind::kOutput:
        m.where = Memory::Where::kOutput;
        if (place.halves) m.low = offset;
        return memory_[id] = m;
      case Place::Kind::kKept:
        m.where = Memory::Where::kKept;
        break;
      default:
        m.tiled = place.layout == Place::Layout::kPrepared;
        if (place.layout == Place::Layout::kChannelsLast) m.ld = padded(m.dims.c);
    }
    m.offset = offset;
    return memory_[id] = m;
  }

  // Bytes of a value in the workspace.
  int64_t workspace_bytes(const Memory& m) const {
    const int64_t channels = m.tiled ? padded(m.dims.c) : std::max(m.ld, m.dims.c);
    const int64_t elements = checked_mul(m.dims.n * m.dims.voxels(), channels, "the workspace");
    return checked_mul(elements, m.element_bytes(), "the workspace");
  }

  // The launch that was made last has `done` these: values that it leaves begin to live, and those that it
  // reads live until now. `ends(id)`: a value that it reads in tiles, and nobody after it.
  template <class Ends>
  void note_lifetimes(const std::vector<Id>& done, Ends&& ends) {
    const int step = static_cast<int>(result_.launches.size()) - 1;
    for (const Id id : done) {
      for (const Id in : graph_[id].in) {
        if (in != kNone && lifetime_[in] != kNone)
          result_.lifetimes[static_cast<size_t>(lifetime_[in])].last = step;
      }
    }
    for (const Id id : done) {
      const Memory& m = memory_[id];
      if (m.where != Memory::Where::kWorkspace && !m.split()) continue;
      lifetime_[id] = static_cast<int>(result_.lifetimes.size());
      result_.lifetimes.push_back({id, workspace_bytes(m), step, step, takes_over(id, done, ends)});
    }
  }

  // A value that the last launch reads for the last time, element by element, where it writes `id`.
  template <class Ends>
  Id takes_over(Id id, const std::vector<Id>& done, Ends&& ends) const {
    const Memory& to = memory_[id];
    if (to.split() || to.tiled || to.type != Dtype::kF32) return kNone;
    for (const Id at : done) {
      if (graph_[at].op->reach(graph_[at]) != Reach::kPoint) return kNone;
    }
    for (const Id at : done) {
      for (const Id in : graph_[at].in) {
        if (in == kNone || lifetime_[in] == kNone || contains(done, in)) continue;
        const Memory& from = memory_[in];
        if (ends(in) && from.where == to.where && from.dims == to.dims && from.type == to.type &&
            from.ld == to.ld)
          return in;
      }
    }
    return kNone;
  }

  bool over_batch(Id id) const { return graph_[id].op->reach(graph_[id]) == Reach::kBatch; }

  Memory lookup(Id id) {
    if (id == kNone) return {};
    if (!plan_.weights[id] || memory_[id].exists()) return memory_[id];
    const Dtype type = is_param(graph_, id) ? options_.dtype : Dtype::kF64;
    memory_[id] = {Memory::Where::kPacked, result_.packed_bytes, type, dims_of(graph_[id].shape)};
    result_.values.push_back({id, result_.packed_bytes, type});
    const int64_t bytes = checked_mul(count(graph_[id].shape), size_of(type), "the packed parameters");
    result_.packed_bytes = checked_add(result_.packed_bytes, round_up(bytes, 64), "the packed parameters");
    return memory_[id];
  }

  // `rest` outlives the builder: what it may take.
  TileBuilder make_builder(Layout layout, const std::vector<Id>& rest) {
    return TileBuilder(
        graph_, layout, cache_, [this](Id id) { return lookup(id); }, [this](Id id) { return place(id); },
        [this, &rest](Id id) {
          return std::ranges::all_of(users_[id], [&](Id user) { return contains(rest, user); });
        });
  }

  // --- passes

  // Whether somebody reads `id` who does not compute it: in what is left of this pass, or in a later one.
  bool read_later(Id id, size_t pass, const std::vector<Id>& rest) const {
    if (is_output(graph_, id)) return true;
    for (const Id user : users_[id]) {
      if (user == kNone) continue;
      if (contains(rest, user)) return true;
      for (size_t p = pass + 1; p < plan_.passes.size(); ++p) {
        const std::vector<Id>& nodes = plan_.passes[p].nodes;
        if (contains(nodes, user) && !contains(nodes, id)) return true;
      }
    }
    return false;
  }

  void schedule_pass(size_t pass) {
    std::vector<Id> rest;
    const std::vector<Id>& nodes = plan_.passes[pass].nodes;
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      // What lies in memory already is not computed again, nor what only it would need.
      if (!memory_[*it].exists() && read_later(*it, pass, rest)) rest.push_back(*it);
    }
    std::ranges::reverse(rest);
    while (!rest.empty()) {
      // Values without extent in space come first: with them at hand, large ones are swept over once.
      std::vector<Id> small;
      std::ranges::copy_if(rest, std::back_inserter(small),
                           [&](Id id) { return dims_of(graph_[id].shape).voxels() == 1; });
      std::vector<Id> done = launch_alone(rest, [&](Id id) { return gives_statistics(id); });
      if (done.empty()) done = launch_conv(pass, rest);
      if (done.empty()) done = launch_alone(rest, [&](Id id) { return is(graph_[id], Op::kMeanConv); });
      if (done.empty()) done = launch_tiles(pass, small, rest);
      if (done.empty()) done = launch_tiles(pass, rest, rest);
      if (done.empty()) done = launch_node(rest);
      std::erase_if(rest, [&](Id id) { return contains(done, id); });
    }
  }

  // A copy of statistics for the caller, or what is made of them: sets, not channels of samples, in float64.
  bool gives_statistics(Id id) const {
    return is_statistics(graph_[id]) && graph_[id].op->reach(graph_[id]) == Reach::kPoint;
  }

  void finish_launch(TileBuilder& builder, size_t pass, const std::vector<Id>& done,
                     const std::vector<Id>& rest) {
    std::vector<Id> left = rest;
    std::erase_if(left, [&](Id id) { return contains(done, id); });
    for (const Id id : done) {
      if (builder.computes(id) && !builder.reduces(id) && read_later(id, pass, left))
        builder.store(id, place(id));
    }
    result_.launches.push_back(make_tile_launch(builder.finish(), cache_));
    for (const Id id : done) {
      if (memory_[id].tiled) memory_[id].tile = result_.launches.back()->tile();
    }
    note_lifetimes(done, [&](Id id) { return !read_later(id, pass, left); });
  }

  // The first convolution whose input is in memory, or behind a head that can be done on the way in.
  std::vector<Id> launch_conv(size_t pass, const std::vector<Id>& rest) {
    for (const Id conv : rest) {
      if (!is(graph_[conv], Op::kConvTranspose)) continue;
      auto stage = std::make_unique<ConvStage>();
      std::vector<Id> done =
          take_head({graph_, users_, rest, [this](Id id) { return lookup(id); }}, conv, *stage);
      if (stage->sources.empty() || stage->in.n == 0) continue;
      done.push_back(conv);
      make_kernel(conv, rest, *stage);
      stage->blocks = blocks_;
      TileBuilder builder = make_builder(Layout::kChannelsLast, rest);
      builder.begin_with(conv, std::move(stage));
      for (const Id id : rest) {
        if (!contains(done, id) && !gives_statistics(id) && builder.add(id)) done.push_back(id);
      }
      finish_launch(builder, pass, done, rest);
      return done;
    }
    return {};
  }

  // bfloat16 products are exact, so that dot products of them serve where both operands are bfloat16 as
  // given; other weights and inputs keep float32.
  void make_kernel(Id conv, const std::vector<Id>& rest, ConvStage& stage) {
    const Id weights = graph_[conv].in[1];
    if (const auto it = convs_.find(conv); it != convs_.end()) {  // computed again: the same kernel
      stage.kernel = result_.kernels[it->second].kernel;
      stage.packed_offset = result_.kernels[it->second].offset;
      stage.cost = result_.kernels[it->second].cost;
      return;
    }
    convs_[conv] = result_.kernels.size();
    const ConvSource& source = stage.sources.front();
    const bool raw = as_given(graph_, weights) && stage.sources.size() == 1 &&
                     source.memory.type == Dtype::kBF16 && source.steps.empty() &&
                     (!source.pool || source.pooling != Pooling::kAvg);
    const Dtype type = raw ? Dtype::kBF16 : options_.dtype == Dtype::kF32 ? Dtype::kF32 : Dtype::kF16;
    stage.kernel = make_conv_kernel(kernel_shape(graph_, conv, rest, blocks_), type, options_.algorithm,
                                    options_.precision, &stage.cost);
    stage.packed_offset = result_.packed_bytes;
    result_.kernels.push_back({stage.kernel, weights, result_.packed_bytes, stage.cost});
    result_.packed_bytes =
        checked_add(result_.packed_bytes, round_up(static_cast<int64_t>(stage.kernel->packed_bytes()), 64),
                    "the packed parameters");
  }

  // The first such node whose operand is in memory, in a launch of its own.
  template <class Such>
  std::vector<Id> launch_alone(const std::vector<Id>& rest, Such&& such) {
    std::vector<Id> found;
    std::ranges::copy_if(rest, std::back_inserter(found),
                         [&](Id id) { return such(id) && memory_[graph_[id].in[0]].exists(); });
    return found.empty() ? found : launch_node(found);
  }

  // Whether one of these values, or what they are made of, lies channels last.
  bool moves_channels_last(const std::vector<Id>& ids) const {
    return std::ranges::any_of(ids, [&](Id id) {
      return plan_.places[id].layout == Place::Layout::kChannelsLast ||
             std::ranges::any_of(graph_[id].in,
                                 [&](Id in) { return in != kNone && memory_[in].channels_last(); });
    });
  }

  // Tries both layouts on the candidates and keeps the one that takes more of them, or moves what lies
  // channels last.
  std::vector<Id> launch_tiles(size_t pass, const std::vector<Id>& candidates, const std::vector<Id>& rest) {
    std::vector<Id> best;
    Layout layout = Layout::kChannelsFirst;
    for (const Layout l : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      if (plan_.part.sliced() && l == Layout::kChannelsFirst) continue;  // tiled values are channels last
      const std::vector<Memory> memory = memory_;
      const std::vector<PackedValue> values = result_.values;
      const int64_t packed_bytes = result_.packed_bytes;
      TileBuilder builder = make_builder(l, candidates);
      std::vector<Id> done;
      for (const Id id : candidates) {
        if (!gives_statistics(id) && builder.add(id)) done.push_back(id);
      }
      if (done.size() > best.size() ||
          (done.size() == best.size() && l == Layout::kChannelsLast && moves_channels_last(done)))
        best = done, layout = l;
      memory_ = memory;  // trying leaves no trace
      result_.values = values;
      result_.packed_bytes = packed_bytes;
    }
    if (best.empty()) return best;
    TileBuilder builder = make_builder(layout, candidates);
    for (const Id id : best) builder.add(id);
    finish_launch(builder, pass, best, rest);
    return best;
  }

  std::vector<Id> launch_node(const std::vector<Id>& rest) {
    for (const Id id : rest) {
      const Node& node = graph_[id];
      std::vector<Memory> operands;
      std::vector<Shape> shapes;
      bool ready = true;
      for (const Id in : node.in) {
        operands.push_back(lookup(in));
        shapes.push_back(in == kNone ? Shape{} : graph_[in].shape);
        ready = ready && (in == kNone || operands.back().exists());
      }
      if (!ready) continue;
      if (over_batch(id)) result_.cuts_samples = false;
      result_.launches.push_back(make_node_launch(node, operands, shapes, place(id)));
      note_lifetimes({id}, [](Id) { return false; });
      return {id};
    }
    throw fail(Status::kInternal, "the CPU engine cannot order the nodes of a pass");
  }

  const FusedPlan& plan_;
  const Graph& graph_;  // with the shapes of a part
  const Options& options_;
  const int64_t blocks_;
  const std::vector<std::vector<Id>> users_;
  const int64_t cache_;
  std::vector<Memory> memory_;
  std::vector<int> lifetime_;   // of each node among the result's, kNone
  std::map<Id, size_t> convs_;  // their kernels in the result
  Schedule result_;
};

}  // namespace

int64_t Schedule::scratch_bytes(bool sliced, int threads) const {
  int64_t all = 0;
  for (const auto& launch : launches) {
    const int64_t bytes = launch->scratch_bytes(threads);
    all = sliced ? checked_add(all, bytes, "the workspace") : std::max(all, bytes);
  }
  return all;
}

Schedule make_schedule(const FusedPlan& plan, const Options& options) {
  return Scheduler(plan, options).run();
}

Options settled(Options options) {
  const int threads = options.threads > 0 ? options.threads : omp_get_max_threads();
  options.threads = std::min(threads, kMaxThreads);
  return options;
}

Limits limits(const Options& options) {
  const int threads = settled(options).threads;
  return {threads, scratch_limit(threads), kScratchBytes * threads, last_level_bytes(), kLane};
}

Footprint measure(const FusedPlan& plan, const Options& options) {
  Schedule schedule = make_schedule(plan, options);
  const auto counts = [](const auto& launch) { return launch->over_batch(); };
  return {std::move(schedule.lifetimes), schedule.scratch_bytes(plan.part.sliced(), settled(options).threads),
          schedule.cuts_samples, std::ranges::any_of(schedule.launches, counts)};
}

bool wants_given_weights(const FusedPlan& plan, const Pass& pass, const Options& options) {
  const Graph& graph = plan.graph;
  if (options.dtype != Dtype::kBF16) return false;
  // An input as it is, or its largest or smallest values.
  Id at = graph[pass.conv].in[0];
  const Node& head = graph[at];
  if (is_pool(head) && !is(head, Op::kAvgPool) && (head.in.size() < 2 || head.in[1] == kNone) &&
      users(graph)[at].size() == 1)
    at = head.in[0];
  if (!is_input(graph, at)) return false;
  const ConvShape shape = kernel_shape(graph, pass.conv, pass.nodes, 1);
  return make_conv_kernel(shape, Dtype::kBF16, options.algorithm, options.precision)->input_type() ==
         Dtype::kBF16;
}

}  // namespace upweave::cpu
