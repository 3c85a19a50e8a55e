#include "plan/lifetimes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "base/checked.h"

namespace upweave {
namespace {

constexpr int64_t kAlign = 64;
constexpr double kGoodEnough = 1.02;  // of the least
constexpr int kMostTries = 64;
constexpr size_t kMostWork = 2'000'000;  // pairs of blocks over all tries

// Values that are one behind the other in the same memory.
struct Block {
  int64_t bytes;
  int first, last;
  int64_t offset = -1;
};

bool alive_together(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

int64_t place(std::vector<Block>& blocks, const std::vector<size_t>& order) {
  int64_t end = 0;
  std::vector<const Block*> there;
  for (Block& block : blocks) block.offset = -1;
  for (size_t k = 0; k < order.size(); ++k) {
    Block& block = blocks[order[k]];
    there.clear();
    for (size_t j = 0; j < k; ++j) {
      if (alive_together(block, blocks[order[j]])) there.push_back(&blocks[order[j]]);
    }
    std::ranges::sort(there, {}, [](const Block* b) { return b->offset; });
    int64_t at = 0;
    for (const Block* other : there) {
      if (at + block.bytes <= other->offset) break;
      at = std::max(at, other->offset + other->bytes);
    }
    block.offset = at;
    end = std::max(end, checked_add(at, block.bytes, "the workspace"));
  }
  return end;
}

int64_t most_alive(const std::vector<Block>& blocks) {
  std::map<int, int64_t> change;  // of the bytes in use, at the beginning of a step
  for (const Block& block : blocks) {
    change[block.first] += block.bytes;
    change[block.last + 1] -= block.bytes;
  }
  int64_t now = 0, most = 0;
  for (const auto& [step, bytes] : change) most = std::max(most, now += bytes);
  return most;
}

}  // namespace

Offsets assign_offsets(const std::vector<Lifetime>& values) {
  std::vector<Block> blocks;
  std::vector<size_t> block_of;
  std::map<Id, size_t> last_in;  // the block that a value is the last of
  for (const Lifetime& value : values) {
    const int64_t bytes = checked_add(value.bytes, kAlign - 1, "the workspace") / kAlign * kAlign;
    const auto under = last_in.find(value.in_place_of);
    if (value.in_place_of != kNone && under != last_in.end() && blocks[under->second].bytes == bytes &&
        blocks[under->second].last == value.first) {
      block_of.push_back(under->second);
      blocks[under->second].last = value.last;
      last_in.erase(under);
    } else {
      block_of.push_back(blocks.size());
      blocks.push_back({bytes, value.first, value.last});
    }
    last_in[value.value] = block_of.back();
  }

  Offsets result;
  result.least = most_alive(blocks);
  result.bytes = INT64_MAX;
  std::vector<Block> best;
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto attempt = [&] {
    if (const int64_t bytes = place(blocks, order); bytes < result.bytes) {
      result.bytes = bytes;
      best = blocks;
    }
    return static_cast<double>(result.bytes) <= kGoodEnough * static_cast<double>(result.least);
  };
  const auto by = [&](auto&& larger) {
    std::ranges::sort(order, [&](size_t a, size_t b) {
      return larger(blocks[a], blocks[b]) || (!larger(blocks[b], blocks[a]) && a < b);
    });
    return attempt();
  };
  std::mt19937 random(1);
  const size_t tries = std::min<size_t>(kMostTries, kMostWork / (blocks.size() * blocks.size() + 1));
  bool done = by([](const Block& a, const Block& b) { return a.bytes > b.bytes; }) ||
              by([](const Block& a, const Block& b) { return a.last - a.first > b.last - b.first; }) ||
              by([](const Block& a, const Block& b) { return a.first < b.first; });
  for (size_t i = 0; i < tries && !done; ++i) {  // large ones first, but not quite
    std::vector<double> rank(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b)
      rank[b] = static_cast<double>(blocks[b].bytes) * static_cast<double>(1 + random() % 1024);
    std::ranges::sort(order, [&](size_t a, size_t b) { return std::tie(rank[b], a) < std::tie(rank[a], b); });
    done = attempt();
  }
  for (const size_t block : block_of) result.at.push_back(best[block].offset);
  return result;
}

int64_t Workspace::total(const Part& part) const {
  return checked_add(checked_add(kept, checked_mul(part.slots, values, "the workspace"), "the workspace"),
                     scratch, "the workspace");
}

}  // namespace upweave
