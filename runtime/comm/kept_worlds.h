// KeptWorlds: keeps worlds that have ended for as long as tensors refer to them.
#ifndef DTENSOR_RUNTIME_COMM_KEPT_WORLDS_H_
#define DTENSOR_RUNTIME_COMM_KEPT_WORLDS_H_

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace dtensor {

// World has the methods `bool has_tensors() const` and `void ReleaseFreeMemory()`; after the latter
// its devices keep no memory but that of tensors. Thread-safe. A KeptWorlds in a static variable
// must never be destroyed, since the last tensors may be in other static variables.
template <typename World>
class KeptWorlds {
 public:
  // Destroys `world` (null: none) and the worlds of earlier calls, except those that still have
  // tensors. They stay, with as little memory as these need, until a later call finds that the
  // tensors are gone.
  void LetGo(std::unique_ptr<World> world) {
    if (world != nullptr && world->has_tensors()) world->ReleaseFreeMemory();
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
