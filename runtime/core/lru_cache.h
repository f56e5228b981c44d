// LruCache: at most so many entries; those used least recently make room for a new one.
#ifndef DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
#define DTENSOR_RUNTIME_CORE_LRU_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

template <typename Key, typename Value>
class LruCache {
 public:
  // Requires: capacity > 0.
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // Null if it is not there. Valid until the next Insert.
  Value* Find(const Key& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    found->second.used = ++uses_;
    return &found->second.value;
  }

  // Requires: Find(key) == nullptr.
  void Insert(const Key& key, Value value) {
    if (entries_.size() == capacity_) MakeRoom();
    entries_.insert({key, {std::move(value), ++uses_}});
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value;
    uint64_t used;  // the how manieth use was the last of this entry
  };

  // An eighth goes at once, so that nobody has to keep entries in order: a hit writes one number.
  void MakeRoom() {
    std::vector<uint64_t> used;
    for (const auto& [key, entry] : entries_) used.push_back(entry.used);
    const auto newest = used.begin() + (std::max<size_t>(capacity_ / 8, 1) - 1);
    std::nth_element(used.begin(), newest, used.end());
    absl::erase_if(entries_, [&](const auto& known) { return known.second.used <= *newest; });
  }

  const size_t capacity_;
  uint64_t uses_ = 0;
  absl::flat_hash_map<Key, Entry> entries_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
