// LruCache: at most so many entries; the one used least recently makes room for a new one.
#ifndef DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
#define DTENSOR_RUNTIME_CORE_LRU_CACHE_H_

#include <cstddef>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace dtensor {

template <typename Key, typename Value>
class LruCache {
 public:
  // Requires: capacity > 0.
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // Null if it is not there. Valid until the next Insert.
  Value* Find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    if (found->second != order_.begin()) order_.splice(order_.begin(), order_, found->second);
    return &found->second->second;
  }

  // Requires: Find(key) == nullptr.
  void Insert(const Key& key, Value value) {
    if (order_.size() == capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    order_.emplace_front(key, std::move(value));
    index_[key] = order_.begin();
  }

  size_t size() const { return order_.size(); }

 private:
  using Order = std::list<std::pair<Key, Value>>;  // latest use first
  const size_t capacity_;
  Order order_;
  absl::flat_hash_map<Key, typename Order::iterator> index_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_LRU_CACHE_H_
