#include "engine/cuda/lower_conv.h"

#include <algorithm>
#include <iterator>

#include "engine/cuda/choose.h"
#include "engine/cuda/co_schedule.h"
#include "engine/cuda/conv_kernels.h"
#include "engine/cuda/generic.h"
#include "engine/cuda/norm.h"

namespace upweave::cuda {
namespace {

// Where the fp16 copy of `x` and the packed `kernel` lie: places of their own, or those of an earlier pass
// whose tiles read the same rows and the same stream.
Prepared prepare(Lowering& l, const Schedule& t, Id x, Id kernel) {
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {}", x, kernel, t.copy.plane, t.copy.guard, t.conv.ck, t.conv.n,
                  t.conv.column_blocks, t.conv.steps.size(), static_cast<int>(t.copy_order()));
  for (const Axis& a : t.conv.axis) key += fmt::format(" {} {} {}", a.in, a.pitch, a.f);
  if (const auto ready = l.prepared.find(key); ready != l.prepared.end()) {
    Prepared again = ready->second;
    again.fresh = false;
    return again;
  }
  Prepared p;
  p.copy = l.reserve(t.copy_bytes());
  p.scale = l.reserve(32);
  p.extremes = l.reserve(int64_t{t.convert_blocks()} * 8);
  p.stream = l.reserve_packed(t.conv.stream_bytes());
  p.weight_scale = l.reserve_packed(32);
  p.weight_extremes = l.reserve_packed(t.conv.weight_columns() * 8);
  return l.prepared[key] = p;
}

// What comes before the convolution: computed where it is read if it can be.
void lower_head(Lowering& l, const Pass& pass, std::vector<bool>& done) {
  const std::vector<bool> head = ancestors(l.graph, pass);
  for (const Id id : pass.nodes) {
    if (!head[id] || l.stored(id)) continue;
    if (computable(l.graph[id])) {
      l.source.places[id].kind = Location::Kind::kInline;
    } else {
      lower_alone(l, id);
    }
    done[id] = true;
  }
}

// Places for what the convolution's kernel stores; `g` is the name of its tiles.
void keep_stores(Lowering& l, const Fusion& fusion, Schedule& schedule, const std::string& g) {
  const Convolution& conv = schedule.conv;
  // Nobody else reads the copy.
  const bool alone = std::ranges::count_if(l.passes, [](const Pass& p) { return p.conv != kNone; }) == 1;
  for (const Id id : fusion.stores) {
    // Blocks of channels only of values behind a pool, for others are stored phase beside phase.
    const bool behind = schedule.stores_blocks() && !is_output(l.graph, id) && !fusion.scalar[id];
    const Id norm = behind && conv.n * conv.column_blocks == conv.c_out ? norm_of_blocks(l, id) : kNone;
    Location& place = l.source.places[id];
    if (norm == l.graph.output && l.options.dtype != Dtype::kF32 && fusion.stores.size() == 1 && alone &&
        schedule.divide(l.graph[id].shape[2], l.graph[id].shape[3])) {
      place = {Location::Kind::kOutput, 0, false, true, g};
    } else {
      l.keep(id);
      place.blocked = norm != kNone && (!place.element || l.options.dtype == Dtype::kF32);
    }
    if (place.blocked && place.kind == Location::Kind::kOutput) l.out.output_alignment = 16;
  }
}

// Gives the convolution's values their places, and writes down what its kernels are made of: constants,
// products, the kernels that prepare its operands unless an earlier pass has, and the epilogue.
ConvKernel prepare_kernel(Lowering& l, const Pass& pass, Fusion fusion, std::unique_ptr<Schedule> schedule) {
  ConvKernel k{std::move(fusion), std::move(schedule), {}, {}, {}, l.convs++};
  Schedule& t = *k.schedule;
  const Id x = l.graph[pass.conv].in[0], kernel = l.graph[pass.conv].in[1];
  const std::string g = k.name();
  keep_stores(l, k.fusion, t, g);
  k.prepared = prepare(l, t, x, kernel);
  l.kernels += t.constants_text(g, k.prepared) + t.products_text(g);
  for (const Id id : k.fusion.stores) {  // named by inlined values, even if no kernel calls them
    if (l.source.places[id].divided.empty()) continue;
    l.kernels += fmt::format(
        "DEVICE float v{}(const Args& a, const At& i) {{ return load<float>(divided_at<{}>(a, i.x[0], i.x[1] "
        "/ 16, i.x[2]), i.x[3] * 16 + i.x[1] % 16); }}\n",
        id, g);
  }
  if (k.prepared.fresh) {
    Conversion conversion = convert_and_pack(l, k, x, kernel);
    std::ranges::move(conversion.run, std::back_inserter(l.out.run));
    std::ranges::move(conversion.pack, std::back_inserter(l.out.pack));
  }
  k.partials = reserve_partials(l, k.fusion, t);
  k.text = epilogue(l, k.fusion, t.conv, t.epilogue_form(), k.partials);
  return k;
}

void finish(Lowering& l, const ConvKernel& k, std::vector<bool>& done) {
  for (const Id id : k.fusion.nodes) done[id] = true;
  l.out.notes.push_back(conv_note(l, k));
}

}  // namespace

size_t lower_conv(Lowering& l, size_t p, std::vector<bool>& done, std::string& why) {
  Pass& pass = l.passes[p];
  if (l.chip.major < 8) return why = "the chip is older than sm_80", 0;
  if (l.graph[pass.conv].in[2] != kNone) return why = "the convolution still has its bias", 0;
  Fusion fusion;
  std::unique_ptr<Schedule> schedule = choose_fusion_and_schedule(l, pass, fusion, why);
  if (!schedule) return 0;
  done.resize(l.graph.nodes.size(), false);  // a pool may be two now
  if (schedule->conv.steps.size() * (schedule->conv.positions * 4 + 3) > 12000)
    return why = "its taps overflow the constant tables", 0;
  lower_head(l, pass, done);
  std::optional<CoSchedule> both = co_schedule(l, p, fusion, *schedule);
  const ConvKernel k = prepare_kernel(l, pass, std::move(fusion), std::move(schedule));
  if (!both) {
    for (Launch& launch : tensor_launches(l, k)) l.run(std::move(launch));
    l.run(fma_launch(l, k));
    if (!k.text.combine.empty()) l.run(combine_windows(l, k));
    for (Launch& launch : combine_reductions(l, k)) l.run(std::move(launch));
    finish(l, k, done);
    return 1;
  }
  l.run(fma_launch(l, k));
  const std::vector<Launch> combine = combine_reductions(l, k);
  finish(l, k, done);
  lower_head(l, l.passes[p + 1], done);
  const ConvKernel second =
      prepare_kernel(l, l.passes[p + 1], std::move(both->fusion), std::move(both->schedule));
  Launch last = fma_launch(l, second);
  finish(l, second, done);
  for (Launch& launch : co_scheduled_launches(l, k, second, both->launches, combine))
    l.run(std::move(launch));
  l.run(std::move(last));
  return 2;
}

}  // namespace upweave::cuda
