#pragma once
#include <algorithm>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "upweave/upweave.hpp"

namespace upweave {

// The last few plans by key, the most recent first. Threads compile side by side: a plan that two of them
// miss at once is made twice, and one of the two is kept.
class PlanCache {
 public:
  using Key = std::vector<uint64_t>;

  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  template <class Make>
  Plan get(const Key& key, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = find(key); it != entries_.end()) {
        entries_.splice(entries_.begin(), entries_, it);
        return it->second;
      }
    }
    std::list<Entry> made, evicted;  // made before, destroyed after the lock is held
    made.emplace_back(key, make());
    const Plan plan = made.front().second;
    const std::lock_guard lock(mutex_);
    if (find(key) != entries_.end()) return plan;
    entries_.splice(entries_.begin(), made);
    if (entries_.size() > capacity_) evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
    return plan;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  using Entry = std::pair<Key, Plan>;
  std::list<Entry>::iterator find(const Key& key) {
    return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.first == key; });
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace upweave
