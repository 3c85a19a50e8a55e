#include "engine/cuda/co_schedule.h"

#include <algorithm>

#include "engine/cuda/choose.h"
#include "engine/cuda/code.h"
#include "engine/cuda/cost.h"
#include "engine/cuda/schedule/depth_streaming.h"
#include "engine/cuda/work.h"

// A pass for reductions over each sample's space, and the pass that reads them, in one kernel that is
// launched once for each half of the samples and once more. In each launch some blocks reduce the next
// samples while the others compute the outputs of those before: the first are bound by products, the others
// by stores, and side by side each uses what the other leaves idle. Where hi and lo are multiplied the ends
// of the launches take what is gained.
namespace upweave::cuda {
namespace {

constexpr int kMicroBatches = 2;  // of samples; with more the ends of launches cost more than is gained

// Cycles of a multiprocessor for all of a pass.
double pass_cycles(const DepthStreaming& t, bool stores) {
  const double values =
      static_cast<double>(t.tiles) * t.m * t.conv.n * static_cast<double>(t.conv.phases.size());
  return product_cycles(t.conv, t.row_steps()) + values * epilogue_cycles(stores).overlapped;
}

// So many blocks for the parts, by their work. There is room on the way to memory.
std::vector<int> blocks_of(const DepthStreaming& t, int all) {
  return share_blocks(t.conv, parts_of(t.parts), all, t.tiles, false);
}

std::vector<SharedLaunch> share_launches(const DepthStreaming& first, const DepthStreaming& second,
                                         int multiprocessors) {
  const DepthStreaming* passes[] = {&first, &second};
  const double cycles[] = {pass_cycles(first, false), pass_cycles(second, true)};
  std::vector<SharedLaunch> launches(kMicroBatches + 1);
  for (int k = 0; k <= kMicroBatches; ++k) {
    SharedLaunch& launch = launches[static_cast<size_t>(k)];
    double work[2] = {};
    for (size_t role = 0; role < 2; ++role) {
      const int micro_batch = k - static_cast<int>(role), batch = first.conv.batch;
      if (micro_batch < 0 || micro_batch == kMicroBatches) continue;
      const int sample = batch * micro_batch / kMicroBatches,
                samples = batch * (micro_batch + 1) / kMicroBatches - sample;
      launch.job[role] = sample * passes[role]->jobs_of_sample();
      launch.jobs[role] = samples * passes[role]->jobs_of_sample();
      work[role] = cycles[role] * samples;
    }
    int summing = static_cast<int>(multiprocessors * work[0] / (work[0] + work[1]) + 0.5);
    if (work[0] > 0 && work[1] > 0)
      summing = std::clamp(summing, static_cast<int>(first.parts.size()),
                           multiprocessors - static_cast<int>(second.parts.size()));
    if (work[0] > 0) launch.blocks[0] = blocks_of(first, summing);
    if (work[1] > 0) launch.blocks[1] = blocks_of(second, multiprocessors - summing);
  }
  return launches;
}

// Everything of the pass is in the convolution's kernel, or in memory before it.
bool all_fused(const Lowering& l, const Pass& pass, const Fusion& f) {
  return std::ranges::all_of(pass.nodes, [&](Id id) {
    return f.holds(id) || l.stored(id) || l.weights[id] ||
           l.source.places[id].kind == Location::Kind::kInline;
  });
}

// Blocks of the second pass go through the volume side by side only if that is even in each launch.
std::vector<DepthStreaming::Share> second_shares(const std::vector<SharedLaunch>& launches) {
  std::vector<DepthStreaming::Share> shares;
  for (const SharedLaunch& launch : launches) {
    for (const int blocks : launch.blocks[1]) shares.push_back({launch.jobs[1], blocks});
  }
  return shares;
}

}  // namespace

std::optional<CoSchedule> co_schedule(Lowering& l, size_t p, const Fusion& fusion, Schedule& schedule) {
  auto* first = dynamic_cast<DepthStreaming*>(&schedule);
  if (p + 2 != l.passes.size() || !first) return {};
  const Pass& pass = l.passes[p];
  Pass& next = l.passes[p + 1];
  if (first->conv.exact() || !fusion.stores.empty() || first->conv.batch < kMicroBatches ||
      next.conv == kNone || !all_fused(l, pass, fusion))
    return {};
  const Node &conv = l.graph[pass.conv], &again = l.graph[next.conv];
  const bool pools = std::ranges::any_of(next.nodes, [&](Id id) {
    return is_pool(l.graph[id]) && l.source.places[id].kind == Location::Kind::kNone;
  });
  if (conv.in[0] != again.in[0] || conv.in[1] != again.in[1] || pools) return {};
  for (const Id id : fusion.nodes) {
    if (fusion.reduction[id]) l.keep(id);
  }
  CoSchedule both;
  std::string why;
  both.schedule = choose_fusion_and_schedule(l, next, both.fusion, why);
  auto* second = dynamic_cast<DepthStreaming*>(both.schedule.get());
  if (!second || second->warpgroups != first->warpgroups ||
      both.fusion.stores != std::vector<Id>{l.graph.output} || !all_fused(l, next, both.fusion) ||
      first->parts.size() + second->parts.size() > static_cast<size_t>(l.chip.multiprocessors))
    return {};
  both.launches = share_launches(*first, *second, l.chip.multiprocessors);
  // With few jobs a block the end of a launch costs more than is gained.
  for (const SharedLaunch& launch : both.launches) {
    for (size_t role = 0; role < 2; ++role) {
      if (std::ranges::any_of(launch.blocks[role],
                              [&](int blocks) { return launch.jobs[role] < 3 * blocks; }))
        return {};
    }
  }
  for (const SharedLaunch& launch : both.launches) {
    if (launch.jobs[0] > 0) first->reserve_slots(launch.blocks[0], launch.jobs[0] / first->jobs_of_sample());
  }
  if (second->side_by_side) second->go_side_by_side(second_shares(both.launches));
  return both;
}

std::vector<Launch> co_scheduled_launches(Lowering& l, const ConvKernel& first, const ConvKernel& second,
                                          const std::vector<SharedLaunch>& shares,
                                          const std::vector<Launch>& combine) {
  const ConvKernel* kernels[] = {&first, &second};
  const auto streaming = [](const ConvKernel& k) -> const DepthStreaming& {
    return dynamic_cast<const DepthStreaming&>(*k.schedule);
  };
  const std::string name = fmt::format("co_scheduled_{}", second.index);
  const auto threads = static_cast<unsigned>((second.schedule->warpgroups + 1) * 128);
  auto role = [&](int which) {
    const std::string begin = code(
        "  const Maps& maps = both.$maps; (void)maps;\n  int partition = 0, block = place;\n"
        "  while (block >= launch.blocks[$pass][partition]) block -= launch.blocks[$pass][partition++];\n"
        "  const int blocks = launch.blocks[$pass][partition], job0 = launch.job[$pass], jobs = "
        "launch.jobs[$pass];\n",
        {{"pass", which}, {"maps", which == 0 ? "first" : "second"}});
    const ConvKernel& k = *kernels[which];
    return streaming(k).role_text(l, k.fusion, k.text, k.name(), false, begin);
  };
  l.write_kernel(
      name, threads, 1,
      "  int place = blockIdx.x, summing = 0;\n  for (const int b : launch.blocks[0]) summing += b;\n"
      "  if (place < summing) {\n" +
          role(0) + "  return;\n  }\n  place -= summing;\n" + role(1),
      ", const __grid_constant__ SharedMaps both, const __grid_constant__ SharedLaunch launch");
  l.out.notes.push_back(fmt::format(
      "kernel {}: {} launches; in each some blocks as conv_{}, and others as conv_{} for the samples before",
      name, shares.size(), first.index, second.index));

  Launch base{name, {0, 1}, threads};
  for (const ConvKernel* k : kernels) {
    base.shared = std::max(base.shared, static_cast<unsigned>(k->schedule->shared_bytes()));
    for (TensorView& view : streaming(*k).tensor_views(k->prepared)) base.views.push_back(std::move(view));
  }
  const Work work[] = {conv_work(l, first.fusion, *first.schedule),
                       conv_work(l, second.fusion, *second.schedule)};
  std::vector<Launch> result;
  for (const SharedLaunch& share : shares) {
    if (!result.empty()) result.insert(result.end(), combine.begin(), combine.end());
    Launch& launch = result.emplace_back(base);
    launch.numbers = {share.job[0], share.job[1], share.jobs[0], share.jobs[1]};
    for (size_t which = 0; which < 2; ++which) {
      std::vector<int> blocks = share.blocks[which];
      blocks.resize(4, 0);
      for (const int b : blocks) launch.grid[0] += static_cast<unsigned>(b);
      launch.numbers.insert(launch.numbers.end(), blocks.begin(), blocks.end());
      launch.work.add(work[which], static_cast<double>(share.jobs[which]) / kernels[which]->schedule->tiles);
    }
  }
  return result;
}

}  // namespace upweave::cuda
