#include "engine/cuda/schedule/partition.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/cuda/cost.h"
#include "engine/cuda/schedule/tile_text.h"

namespace upweave::cuda {

int Part::steps() const {
  int sum = 0;
  for (const auto& [first, count] : step_runs) sum += count;
  return sum;
}

std::vector<Part> share_phases(const Convolution& conv, int count) {
  std::vector<int> order(conv.phase_groups());
  std::iota(order.begin(), order.end(), 0);
  if (count > 1) {
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](int g) { return conv.steps_of(g)[1] - conv.steps_of(g)[0]; });
  }
  std::vector<Part> parts(count);
  std::vector<int> load(count, 0);
  for (const int group : order) {
    const auto least = std::ranges::min_element(load) - load.begin();
    const auto [first, end] = conv.steps_of(group);
    parts[least].groups.push_back(group);
    parts[least].step_runs.push_back({first, end - first});
    load[least] += end - first;
  }
  return parts;
}

std::vector<int> part_of_steps(const Convolution& conv, const std::vector<const Part*>& parts) {
  std::vector<int> part(conv.steps.size(), 0);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (const auto& [first, count] : parts[p]->step_runs)
      std::fill_n(part.begin() + first, count, static_cast<int>(p));
  }
  return part;
}

std::vector<int> share_blocks(const Convolution& conv, const std::vector<const Part*>& parts,
                              int multiprocessors, int tiles, bool stores) {
  const int all = std::max(static_cast<int>(parts.size()), multiprocessors / conv.column_blocks);
  std::vector<double> cost;
  for (const Part* part : parts) {
    double cycles = 0;
    for (const auto& [first, count] : part->step_runs) cycles += subtile_cycles(conv, count, stores);
    cost.push_back(cycles);
  }
  const double total = std::accumulate(cost.begin(), cost.end(), 0.0);
  std::vector<int> blocks;
  int left = all;
  for (size_t p = 0; p < parts.size(); ++p) {
    const int rest = static_cast<int>(parts.size() - p) - 1;
    const int mine =
        rest == 0 ? left : std::clamp(static_cast<int>(all * cost[p] / total + 0.5), 1, left - rest);
    left -= mine;
    blocks.push_back(std::min(mine, tiles));
  }
  return blocks;
}

int resident_weights(const Convolution& conv, const std::vector<const Part*>& parts) {
  int most = 0;
  for (const Part* part : parts) most = std::max(most, part->steps());
  return (shared_bytes_of(most, conv.step_bytes()) + 1023) / 1024 * 1024;
}

std::string by_part(const std::vector<int>& values) {
  std::string text;
  for (size_t o = 0; o + 1 < values.size(); ++o) text += fmt::format("partition == {} ? {} : ", o, values[o]);
  return text + fmt::format("{}", values.back());
}

std::string before_part(std::vector<int> values) {
  std::exclusive_scan(values.begin(), values.end(), values.begin(), 0);
  return by_part(values);
}

std::string part_of_block(const std::vector<int>& blocks) {
  std::string text;
  int before = 0;
  for (size_t o = 0; o + 1 < blocks.size(); ++o) {
    before += blocks[o];
    text += fmt::format("(int)blockIdx.x < {} ? {} : ", before, o);
  }
  return text + fmt::format("{}", blocks.size() - 1);
}

std::string part_tables(const std::string& g, const std::vector<const Part*>& parts) {
  std::vector<int> step_runs, groups;
  for (const Part* part : parts) {
    for (const auto& [first, count] : part->step_runs) step_runs.insert(step_runs.end(), {first, count});
    groups.insert(groups.end(), part->groups.begin(), part->groups.end());
  }
  return table(g + "_step_runs", "int", step_runs) + table(g + "_phases", "int", groups);
}

}  // namespace upweave::cuda
