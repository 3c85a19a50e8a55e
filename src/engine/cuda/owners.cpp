#include <algorithm>
#include <numeric>

#include "engine/cuda/conv_tiles.h"
#include "engine/cuda/tile_axis.h"

// Which blocks do what, where a block keeps its weights: groups of phases to owners, blocks to owners, and
// the way of each block through the volume.
namespace upweave::cuda {

void share_phases(ConvTiles& t, int count) {
  const int groups = static_cast<int>(t.phases.size()) / t.store_phases;
  auto steps_of = [&](int group) {
    return std::array{t.group_begin[t.class_begin[group * t.store_phases]],
                      t.group_begin[t.class_begin[(group + 1) * t.store_phases]]};
  };
  std::vector<int> order(groups);
  std::iota(order.begin(), order.end(), 0);
  if (count > 1) {
    std::ranges::stable_sort(order, std::greater<>(), [&](int g) { return steps_of(g)[1] - steps_of(g)[0]; });
  }
  t.owners.assign(count, {});
  std::vector<int> load(count, 0);
  for (const int group : order) {
    const auto least = std::ranges::min_element(load) - load.begin();
    const auto [first, end] = steps_of(group);
    t.owners[least].groups.push_back(group);
    t.owners[least].slabs.push_back({first, end - first});
    load[least] += end - first;
    for (int s = first; s < end; ++s) t.steps[s].owner = static_cast<int>(least);
  }
}

void share_blocks(ConvTiles& t, const TileWish& wish) {
  const int all = std::max(static_cast<int>(t.owners.size()), wish.multiprocessors / t.column_blocks);
  double total = 0;
  // Cycles of a piece as measured: 32 for 64 columns and 16 terms, and what of an epilogue does not run
  // beside them; at least the whole epilogue, with the way to memory.
  const double values = 64. * t.n * t.store_phases;
  auto cost = [&](const Owner& o) {
    double cycles = 0;
    for (const auto& [first, count] : o.slabs) {
      const double products = count * 2. * t.ck * t.n / 64 * (1 + t.input_lo + t.weights_lo);
      cycles +=
          std::max(products + (wish.stores ? 0.16 : 0.075) * values, (wish.stores ? 0.29 : 0.16) * values);
    }
    return cycles;
  };
  for (const Owner& o : t.owners) total += cost(o);
  int left = all;
  for (size_t o = 0; o < t.owners.size(); ++o) {
    const int rest = static_cast<int>(t.owners.size() - o) - 1;
    Owner& owner = t.owners[o];
    owner.blocks =
        rest == 0 ? left : std::clamp(static_cast<int>(all * cost(owner) / total + 0.5), 1, left - rest);
    left -= owner.blocks;
    owner.blocks = std::min(owner.blocks, t.tiles);
  }
}

void go_abreast(ConvTiles& t, const std::vector<Share>& shares) {
  const int depths = t.axis[0].windows;
  t.abreast = false;
  t.run = depths;
  for (const int run : {4, 3, 2, 1}) {  // longer ones give no more, and are harder to share
    if (depths % run != 0) continue;
    const bool even = std::ranges::all_of(shares, [&](const Share& s) {
      return s.jobs / run >= s.blocks && ceil_div(s.jobs / run, s.blocks) * run * s.blocks <= 1.04 * s.jobs;
    });
    if (!even) continue;
    t.abreast = true;
    t.run = run;
    return;
  }
}

void reserve_slots(ConvTiles& t, const std::vector<int>& blocks, int samples) {
  int before = 0;
  for (size_t o = 0; o < t.owners.size(); ++o) {
    Owner& owner = t.owners[o];
    owner.slots = std::max(owner.slots, ceil_div(blocks[o], samples) + 1);
    owner.first_slot = before;
    before += owner.slots;
  }
}

}  // namespace upweave::cuda
