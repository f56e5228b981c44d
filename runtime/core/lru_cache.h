// LruCache: holds a limited number of entries, of limited total weight. The least recently used
// ones are evicted for a new one.
#ifndef DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
#define DTENSOR_RUNTIME_CORE_LRU_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"

namespace DTENSOR_EXPORT dtensor {

template <typename Key, typename Value>
class LruCache {
 public:
  // Requires: capacity > 0.
  explicit LruCache(size_t capacity, int64_t most_weight = std::numeric_limits<int64_t>::max() / 2)
      : capacity_(capacity), most_weight_(most_weight) {}

  // Null if there is no such entry. Valid until the next Insert.
  Value* Find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    found->second.used = ++uses_;
    return &found->second.value;
  }

  // If the entry is heavier than the limit, it is kept anyway, together with only those entries
  // that weigh nothing. Requires: Find(key) == nullptr, 0 <= weight < 2^62.
  void Insert(const Key& key, Value value, int64_t weight = 0) {
    if (entries_.size() == capacity_) MakeRoom();
    if (weight > 0 && weight_ + weight > most_weight_) MakeLighter(weight);
    entries_.insert({key, {std::move(value), ++uses_, weight}});
    weight_ += weight;
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    uint64_t used;  // the value of uses_ at this entry's last use
    int64_t weight;
  };

  // Evicts an eighth of the entries at once, so that they need not be kept in order: a hit writes
  // only one number.
  void MakeRoom() {
    std::vector<uint64_t> used;
    for (const auto& [key, entry] : entries_) used.push_back(entry.used);
    const auto newest = used.begin() + (std::max<size_t>(capacity_ / 8, 1) - 1);
    std::nth_element(used.begin(), newest, used.end());
    Forget(*newest, /*least_weight=*/0);
  }

  // Evicts until an eighth of the weight is free as well. Entries that weigh nothing are kept.
  void MakeLighter(int64_t weight) {
    std::vector<std::pair<uint64_t, int64_t>> heavy;  // last use, weight
    for (const auto& [key, entry] : entries_) {
      if (entry.weight > 0) heavy.emplace_back(entry.used, entry.weight);
    }
    std::sort(heavy.begin(), heavy.end());
    const int64_t most = most_weight_ - most_weight_ / 8 - weight;
    int64_t left = weight_;
    uint64_t newest = 0;
    for (size_t i = 0; i < heavy.size() && left > most; ++i) {
      newest = heavy[i].first;
      left -= heavy[i].second;
    }
    Forget(newest, /*least_weight=*/1);
  }

  void Forget(uint64_t newest, int64_t least_weight) {
    std::erase_if(entries_, [&](const auto& known) {
      const Entry& entry = known.second;
      const bool forget = entry.used <= newest && entry.weight >= least_weight;
      if (forget) weight_ -= entry.weight;
      return forget;
    });
  }

  const size_t capacity_;
  const int64_t most_weight_;
  int64_t weight_ = 0;  // of all entries
  uint64_t uses_ = 0;
  HashMap<Key, Entry> entries_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
