// KeptWorlds: worlds that have ended, and stay while there are tensors that refer to them.
#ifndef DTENSOR_RUNTIME_COMM_KEPT_WORLDS_H_
#define DTENSOR_RUNTIME_COMM_KEPT_WORLDS_H_

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace dtensor {

// World: has_tensors() const. Thread-safe. One in a static variable is never to be destroyed:
// tensors in others may be the last ones.
template <typename World>
class KeptWorlds {
 public:
  // Destroys `world` (null: none), and those of earlier calls; those that have tensors stay until a
  // later call finds that these are gone.
  void LetGo(std::unique_ptr<World> world) {
    std::vector<std::unique_ptr<World>> over;  // destroyed once the mutex is free again
    const std::lock_guard lock(mutex_);
    if (world != nullptr) kept_.push_back(std::move(world));
    const auto first = std::partition(kept_.begin(), kept_.end(),
                                      [](const auto& known) { return known->has_tensors(); });
    std::move(first, kept_.end(), std::back_inserter(over));
    kept_.erase(first, kept_.end());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<World>> kept_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_KEPT_WORLDS_H_
