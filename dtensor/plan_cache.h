// PlanCache: the plans of one rank, the least recently used of which are forgotten. What it holds
// changes no communication: a plan is made anew with the same steps.
#ifndef DTENSOR_PLAN_CACHE_H_
#define DTENSOR_PLAN_CACHE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dtensor/executor.h"

namespace dtensor {

struct Spec;  // context.h

class PlanCache {
 public:
  // Specs and options as interned by a Context: compared by address. The result's type, and so all
  // that matters, is in them.
  using Key = std::tuple<const Spec*, const Spec*, const RedistributionOptions*>;

  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const RankPlan> Find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    if (found->second != order_.begin()) order_.splice(order_.begin(), order_, found->second);
    return found->second->second;
  }

  // Requires: Find(key) == nullptr.
  void Insert(const Key& key, std::shared_ptr<const RankPlan> plan) {
    if (order_.size() == capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    order_.emplace_front(key, std::move(plan));
    index_[key] = order_.begin();
  }

  size_t size() const { return order_.size(); }

 private:
  using Order = std::list<std::pair<Key, std::shared_ptr<const RankPlan>>>;  // latest use first
  const size_t capacity_;
  Order order_;
  absl::flat_hash_map<Key, Order::iterator> index_;
};

}  // namespace dtensor

#endif  // DTENSOR_PLAN_CACHE_H_
