#include "engine/cpu/schedule.h"

#include <omp.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "base/checked.h"
#include "engine/cpu/node_launch.h"
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
  s.in = extents_of(g.in, 1);
  s.out = extents_of(g.out, 1);
  return s;
}

class Scheduler {
 public:
  Scheduler(const FusedPlan& plan, const Options& options, int64_t blocks)
      : plan_(plan),
        graph_(plan.graph),
        options_(options),
        blocks_(blocks),
        users_(users(plan.graph)),
        cache_(cache_bytes_per_core()) {
    memory_.resize(graph_.nodes.size());
    for (const Pass& pass : plan.passes) nodes_.push_back(pass.nodes);
    for (size_t p = 0; p < nodes_.size(); ++p) recompute_large(p);
    for (Id id = 0; is_input(graph_, id); ++id) memory_[id] = input_place(id);
  }

  Schedule run() {
    for (size_t p = 0; p < plan_.passes.size(); ++p) schedule_pass(p);
    const Id out = graph_.output;
    if (memory_[out].where != Memory::Where::kOutput) {  // the input itself, or a parameter
      const std::vector<Id> nothing;
      TileBuilder builder = make_builder(Layout::kChannelsFirst, nothing);
      builder.store(out, output_place());
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

  Memory output_place() const {
    return {Memory::Where::kOutput, 0, options_.dtype, dims_of(graph_[graph_.output].shape)};
  }

  Memory extra_place(Id id) const {
    const Dtype type = output_dtype(graph_, id, options_.dtype);
    const auto at = std::ranges::find(graph_.extra_outputs, id, &Output::value);
    Memory m{Memory::Where::kExtraOutput, at - graph_.extra_outputs.begin() + 1, type,
             dims_of(graph_[id].shape)};
    if (!is_statistics(graph_[id])) m.sample_bytes = m.dims.c * m.dims.voxels() * size_of(type);
    return m;
  }

  Memory workspace_place(Id id, Dtype type) {
    Memory m{Memory::Where::kWorkspace, result_.workspace_bytes, type, dims_of(graph_[id].shape)};
    m.tiled = blocks_ > 0 && m.dims.voxels() > 1;
    if (!m.tiled && type == Dtype::kF32 && plan_.places[id].layout == Place::Layout::kChannelsLast)
      m.ld = padded(m.dims.c);
    const int64_t channels = m.tiled ? padded(m.dims.c) : std::max(m.ld, m.dims.c);
    const int64_t elements = checked_mul(m.dims.n * m.dims.voxels(), channels, "the workspace");
    const int64_t bytes = checked_mul(elements, size_of(type), "the workspace");
    result_.workspace_bytes = checked_add(result_.workspace_bytes, round_up(bytes, 64), "the workspace");
    return m;
  }

  // Statistics are float64, so that a large mean keeps the digits that the spread needs.
  Memory place(Id id) {
    if (memory_[id].exists()) return memory_[id];
    const bool stats = is_statistics(graph_[id]);
    if (is_extra_output(graph_, id)) return memory_[id] = extra_place(id);
    if (stats && over_batch(id) && id != graph_.output) {
      memory_[id] = {Memory::Where::kKept, result_.kept_bytes, Dtype::kF64, dims_of(graph_[id].shape)};
      result_.kept_bytes += round_up(count(graph_[id].shape) * 8, 64);
      return memory_[id];
    }
    if (id == graph_.output) {
      memory_[id] = output_place();
    } else if (plan_.places[id].kind == Place::Kind::kOutput && !stats) {
      memory_[id] = {Memory::Where::kOutput, 0, Dtype::kF32, dims_of(graph_[id].shape)};
    } else if (!stats && takes_upper_halves(id)) {
      memory_[id] = {Memory::Where::kOutput, 0, Dtype::kF32, dims_of(graph_[id].shape)};
      memory_[id].low = workspace_place(id, Dtype::kF16).offset;
      halved_ = id;
    } else {
      memory_[id] = workspace_place(id, stats ? Dtype::kF64 : Dtype::kF32);
    }
    return memory_[id];
  }

  bool over_batch(Id id) const { return graph_[id].op->reach(graph_[id]) == Reach::kBatch; }

  // A 16-bit output holds the upper halves of one float32 value that it will replace voxel by voxel, which
  // saves half of the memory and no rounding.
  bool takes_upper_halves(Id id) const {
    const Pass& last = plan_.passes.back();
    if (options_.dtype == Dtype::kF32 || blocks_ > 0 || (halved_ != kNone && halved_ != id)) return false;
    if (!output_can_hold(plan_, id) || dims_of(graph_[id].shape).voxels() == 1) return false;
    return std::ranges::all_of(plan_.passes, [&](const Pass& pass) {
      return contains(pass.reads, id) ? pass.conv == kNone : &pass != &last;
    });
  }

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

  // A value of 16-bit pipelines that the output cannot hold (it would be rounded twice) and that is larger
  // than the scratch the engine allows itself is computed again by the passes that read it. Statistics over
  // the batch keep theirs: computing all of a batch norm's convolution twice costs more than the memory is
  // worth.
  void recompute_large(size_t pass) {
    if (options_.dtype == Dtype::kF32 || plan_.passes[pass].conv == kNone) return;
    for (const Id id : plan_.passes[pass].reductions) {
      if (over_batch(id)) return;
    }
    const int threads = options_.threads > 0 ? options_.threads : omp_get_max_threads();
    for (const Id id : plan_.passes[pass].writes) {
      if (is_output(graph_, id) || count(graph_[id].shape) * 4 <= kScratchBytes * threads) continue;
      for (size_t p = pass + 1; p < nodes_.size(); ++p) {
        if (contains(plan_.passes[p].reads, id)) add_with_operands(id, nodes_[p], plan_.passes[pass]);
      }
    }
  }

  // Puts a node of `from`, behind the nodes of `from` that it needs, in front of `nodes`.
  void add_with_operands(Id id, std::vector<Id>& nodes, const Pass& from) {
    const std::vector<Id> chain =
        with_operands(graph_, id, [&](Id at) { return !contains(nodes, at) && contains(from.nodes, at); });
    nodes.insert(nodes.begin(), chain.begin(), chain.end());
  }

  // Whether somebody reads `id` who does not compute it: in what is left of this pass, or in a later one.
  bool read_later(Id id, size_t pass, const std::vector<Id>& rest) const {
    if (is_output(graph_, id)) return true;
    for (const Id user : users_[id]) {
      if (user == kNone) continue;
      if (contains(rest, user)) return true;
      for (size_t p = pass + 1; p < nodes_.size(); ++p) {
        if (contains(nodes_[p], user) && !contains(nodes_[p], id)) return true;
      }
    }
    return false;
  }

  void schedule_pass(size_t pass) {
    std::vector<Id> rest;
    const std::vector<Id>& nodes = nodes_[pass];
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
      stage->blocks = std::max<int64_t>(1, blocks_);
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

  // Outputs of the convolution that pools behind it take together, along each axis.
  Extents pooled_together(Id conv, const std::vector<Id>& rest) const {
    Extents all = {1, 1, 1};
    std::map<Id, Extents> stride = {{conv, all}};
    for (const Id id : rest) {
      const Node& node = graph_[id];
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

  // conv(x; K - mean K) = conv(x; K) - its mean over channels: the norm for which a law has centred the
  // weights takes the mean itself. Only that norm, or an addition before it, reads such a convolution.
  void center_behind(Id conv) {
    Id norm = users_[conv].front();
    if (is(graph_[norm], Op::kAdd)) norm = users_[norm].front();
    graph_[norm].op = &operation(Op::kLayerNorm);
  }

  // bfloat16 products are exact, so that dot products of them serve where both operands are bfloat16 as
  // given (weights that were only centred are taken as they were); other derived weights and inputs keep
  // float32.
  void make_kernel(Id conv, const std::vector<Id>& rest, ConvStage& stage) {
    Id weights = graph_[conv].in[1];
    if (const auto it = convs_.find(conv); it != convs_.end()) {  // computed again: the same kernel
      stage.kernel = result_.kernels[it->second].kernel;
      stage.packed_offset = result_.kernels[it->second].offset;
      stage.cost = result_.kernels[it->second].cost;
      return;
    }
    convs_[conv] = result_.kernels.size();
    const Id given = is(graph_[weights], Op::kCenter) ? graph_[weights].in[0] : weights;
    const ConvSource& source = stage.sources.front();
    const bool raw = options_.dtype == Dtype::kBF16 && is_param(graph_, given) && stage.sources.size() == 1 &&
                     source.memory.type == Dtype::kBF16 && source.steps.empty() &&
                     (!source.pool || source.pooling != Pooling::kAvg);
    ConvShape shape = conv_shape(conv_geometry(graph_, graph_[conv]));
    shape.window = pooled_together(conv, rest);
    shape.blocks = std::max<int64_t>(1, blocks_);
    const Dtype type = raw ? Dtype::kBF16 : options_.dtype == Dtype::kF32 ? Dtype::kF32 : Dtype::kF16;
    stage.kernel = make_conv_kernel(shape, type, options_.algorithm, options_.precision, &stage.cost);
    if (weights != given && stage.kernel->input_type() == Dtype::kBF16) {
      weights = given;
      center_behind(conv);
    }
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
      if (blocks_ > 0 && l == Layout::kChannelsFirst) continue;  // tiled values are channels last
      const std::vector<Memory> memory = memory_;
      const Schedule counted{
          {}, result_.values, {}, result_.packed_bytes, result_.workspace_bytes, result_.kept_bytes};
      const Id halved = halved_;
      TileBuilder builder = make_builder(l, candidates);
      std::vector<Id> done;
      for (const Id id : candidates) {
        if (!gives_statistics(id) && builder.add(id)) done.push_back(id);
      }
      if (done.size() > best.size() ||
          (done.size() == best.size() && l == Layout::kChannelsLast && moves_channels_last(done)))
        best = done, layout = l;
      memory_ = memory;  // trying leaves no trace
      result_.values = counted.values;
      result_.packed_bytes = counted.packed_bytes;
      result_.workspace_bytes = counted.workspace_bytes;
      result_.kept_bytes = counted.kept_bytes;
      halved_ = halved;
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
      return {id};
    }
    throw fail(Status::kInternal, "the CPU engine cannot order the nodes of a pass");
  }

  const FusedPlan& plan_;
  Graph graph_;
  const Options& options_;
  const int64_t blocks_;  // 0: not sliced
  const std::vector<std::vector<Id>> users_;
  const int64_t cache_;
  std::vector<std::vector<Id>> nodes_;  // of each pass, with what is computed again
  std::vector<Memory> memory_;
  Id halved_ = kNone;           // the value whose upper halves lie in the output
  std::map<Id, size_t> convs_;  // their kernels in the result
  Schedule result_;
};

}  // namespace

Schedule make_schedule(const FusedPlan& plan, const Options& options, int64_t blocks) {
  return Scheduler(plan, options, blocks).run();
}

}  // namespace upweave::cpu
