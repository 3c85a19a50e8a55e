#include "engine/cuda/relay.h"

#include <algorithm>

#include "engine/cuda/conv_text.h"

// A relay: sweeps for reductions over each sample's space, and the sweep that reads them, in one kernel that
// is launched once for each half of the samples and once more. In each launch some blocks reduce the next
// samples while the others compute the outputs of those before: the first are bound by products, the others
// by stores, and side by side each uses what the other leaves idle. Where hi and lo are multiplied the ends
// of the launches take what is gained.
namespace upweave::cuda {
namespace {

constexpr int kChunks = 2;  // of samples; with more the ends of launches cost more than is gained

// Cycles of a multiprocessor for all pieces of a sweep: its products, and as many a value as was measured.
double sweep_cycles(const ConvTiles& t, bool stores) {
  const double values = static_cast<double>(t.tiles) * t.m * t.n * static_cast<double>(t.phases.size());
  return t.row_steps() * t.n * t.ck / 2048 + values * (stores ? 0.19 : 0.07);
}

// So many blocks for the owners, by their work.
std::vector<int> blocks_of(ConvTiles t, int all) {
  TileWish wish;
  wish.multiprocessors = all;
  wish.stores = false;  // there is room on the way to memory
  share_blocks(t, wish);
  return t.blocks_by_owner();
}

int jobs_of_sample(const ConvTiles& t) { return t.tiles / t.batch; }

std::vector<Leg> legs_of(const ConvTiles& first, const ConvTiles& second, int multiprocessors) {
  const ConvTiles* tiles[] = {&first, &second};
  const double cycles[] = {sweep_cycles(first, false), sweep_cycles(second, true)};
  std::vector<Leg> legs(kChunks + 1);
  for (int k = 0; k <= kChunks; ++k) {
    Leg& leg = legs[static_cast<size_t>(k)];
    double work[2] = {};
    for (size_t role = 0; role < 2; ++role) {
      const int chunk = k - static_cast<int>(role), batch = first.batch;
      if (chunk < 0 || chunk == kChunks) continue;
      const int sample = batch * chunk / kChunks, samples = batch * (chunk + 1) / kChunks - sample;
      leg.job[role] = sample * jobs_of_sample(*tiles[role]);
      leg.jobs[role] = samples * jobs_of_sample(*tiles[role]);
      work[role] = cycles[role] * samples;
    }
    int summing = static_cast<int>(multiprocessors * work[0] / (work[0] + work[1]) + 0.5);
    if (work[0] > 0 && work[1] > 0)
      summing = std::clamp(summing, static_cast<int>(first.owners.size()),
                           multiprocessors - static_cast<int>(second.owners.size()));
    if (work[0] > 0) leg.blocks[0] = blocks_of(first, summing);
    if (work[1] > 0) leg.blocks[1] = blocks_of(second, multiprocessors - summing);
  }
  return legs;
}

// Everything of the pass is in the convolution's kernel, or in memory before it.
bool all_joined(const Lowering& l, const Pass& pass, const Fusion& f) {
  return std::ranges::all_of(pass.nodes, [&](Id id) {
    return f.holds(id) || l.stored(id) || l.weights[id] ||
           l.source.places[id].kind == Location::Kind::kInline;
  });
}

// The launch of a leg, which has its share of what both sweeps do.
Launch launch_leg(Launch launch, const Leg& leg, const Launch (&work)[2],
                  const ConvTiles* const (&tiles)[2]) {
  launch.numbers = {leg.job[0], leg.job[1], leg.jobs[0], leg.jobs[1]};
  launch.grid[0] = 0;
  for (size_t role = 0; role < 2; ++role) {
    std::vector<int> blocks = leg.blocks[role];
    blocks.resize(4, 0);
    for (const int b : blocks) launch.grid[0] += static_cast<unsigned>(b);
    launch.numbers.insert(launch.numbers.end(), blocks.begin(), blocks.end());
    const double share = static_cast<double>(leg.jobs[role]) / tiles[role]->tiles;
    launch.overlaps |= work[role].overlaps;
    launch.products += work[role].products * share;
    launch.operations += work[role].operations * share;
    launch.bytes += work[role].bytes * share;
    launch.singly += work[role].singly * share;
  }
  return launch;
}

}  // namespace

std::shared_ptr<Relay> make_relay(Lowering& l, Pass& pass, const Fusion& fusion, ConvTiles& tiles) {
  Pass* next = &pass + 1;
  if (!tiles.swept || tiles.input_lo || tiles.weights_lo || !fusion.stores.empty() || tiles.batch < kChunks ||
      next != &l.passes.back() || next->conv == kNone || !all_joined(l, pass, fusion))
    return nullptr;
  const Node &conv = l.graph[pass.conv], &again = l.graph[next->conv];
  const bool pools = std::ranges::any_of(next->nodes, [&](Id id) {
    return is_pool(l.graph[id]) && l.source.places[id].kind == Location::Kind::kNone;
  });
  if (conv.in[0] != again.in[0] || conv.in[1] != again.in[1] || pools) return nullptr;
  for (const Id id : fusion.nodes) {
    if (fusion.reduction[id]) l.keep(id);
  }
  Fusion after;
  ConvTiles second;
  std::string why;
  if (!choose_tiles(l, *next, after, second, why) || !second.swept || second.warpgroups != tiles.warpgroups ||
      after.stores != std::vector<Id>{l.graph.output} || !all_joined(l, *next, after) ||
      tiles.owners.size() + second.owners.size() > static_cast<size_t>(l.chip.multiprocessors))
    return nullptr;
  auto relay = std::make_shared<Relay>();
  relay->legs = legs_of(tiles, second, l.chip.multiprocessors);
  for (const Leg& leg : relay->legs) {  // with few jobs a block the end of a launch costs more than is gained
    for (size_t role = 0; role < 2; ++role) {
      if (std::ranges::any_of(leg.blocks[role], [&](int blocks) { return leg.jobs[role] < 3 * blocks; }))
        return nullptr;
    }
  }
  for (const Leg& leg : relay->legs) {
    if (leg.jobs[0] > 0) reserve_slots(tiles, leg.blocks[0], leg.jobs[0] / jobs_of_sample(tiles));
  }
  return relay;
}

std::vector<Share> second_shares(const Relay& relay) {
  std::vector<Share> shares;
  for (const Leg& leg : relay.legs) {
    for (const int blocks : leg.blocks[1]) shares.push_back({leg.jobs[1], blocks});
  }
  return shares;
}

void write_relay(Lowering& l, const Fusion& fusion, const ConvTiles& tiles, const EpilogueText& e,
                 const Prepared& p, int index) {
  const Relay& r = *l.relay;
  const std::string name = fmt::format("relay_{}", index);
  const auto threads = static_cast<unsigned>((tiles.warpgroups + 1) * 128);
  auto role = [&](int which) {
    return fmt::format(
        "  const Maps& maps = both.{1}; (void)maps;\n  int owner = 0, block = place;\n"
        "  while (block >= leg.blocks[{0}][owner]) block -= leg.blocks[{0}][owner++];\n"
        "  const int blocks = leg.blocks[{0}][owner], job0 = leg.job[{0}], jobs = leg.jobs[{0}];\n",
        which, which == 0 ? "first" : "second");
  };
  const std::string text =
      "  int place = blockIdx.x, summing = 0;\n  for (const int b : leg.blocks[0]) summing += b;\n"
      "  if (place < summing) {\n" +
      sweep_text(l, r.fusion, r.tiles, r.text, fmt::format("G{}", index - 1), false, role(0)) +
      "  return;\n  }\n  place -= summing;\n" +
      sweep_text(l, fusion, tiles, e, fmt::format("G{}", index), false, role(1));
  l.write_kernel(name, threads, 1, text,
                 ", const __grid_constant__ RelayMaps both, const __grid_constant__ Leg leg");

  Launch launch{name,
                {1, 1},
                threads,
                static_cast<unsigned>(std::max(r.tiles.shared_bytes(), tiles.shared_bytes())),
                sweep_views(r.tiles, r.prepared)};
  for (TensorView& view : sweep_views(tiles, p)) launch.views.push_back(std::move(view));
  // conv_0, conv_fma_0, combine, conv_1, conv_fma_1 become conv_fma_0, leg, combine, leg, combine, leg,
  // conv_fma_1.
  auto& run = l.out.run;
  auto launch_of = [&](int i) { return std::ranges::find(run, fmt::format("conv_{}", i), &Launch::kernel); };
  const Launch work[] = {*launch_of(index - 1), *launch_of(index)};
  run.erase(launch_of(index - 1));
  const auto last = launch_of(index);
  const auto after = std::ranges::find(run, fmt::format("conv_fma_{}", index - 1), &Launch::kernel) + 1;
  const std::vector<Launch> combine(after, last);
  std::vector<Launch> legs;
  for (const Leg& leg : r.legs) {
    if (!legs.empty()) legs.insert(legs.end(), combine.begin(), combine.end());
    legs.push_back(launch_leg(launch, leg, work, {&r.tiles, &tiles}));
  }
  const auto place = run.erase(after, last + 1);
  run.insert(place, legs.begin(), legs.end());
  l.out.notes.push_back(fmt::format(
      "kernel {}: {} launches; in each some blocks as conv_{}, and others as conv_{} for the samples before",
      name, r.legs.size(), index - 1, index));
}

}  // namespace upweave::cuda
