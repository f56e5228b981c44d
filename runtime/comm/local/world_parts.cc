#include "dtensor/runtime/comm/local/world_parts.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace dtensor {

bool WorldParts::has_tensors() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device->tensors() > 0; });
}

void LetGo(std::unique_ptr<WorldParts> world) {
  using Worlds = std::vector<std::unique_ptr<WorldParts>>;
  // Never destroyed: tensors in static variables may be the last ones.
  static auto& mutex = *new std::mutex;
  static auto& kept = *new Worlds;
  if (world->has_tensors()) {
    for (const auto& device : world->devices) device->set_kept_bytes(0);
  }
  Worlds over;  // destroyed once the mutex is free again
  std::lock_guard lock(mutex);
  kept.push_back(std::move(world));
  const auto first = std::partition(kept.begin(), kept.end(),
                                    [](const auto& known) { return known->has_tensors(); });
  std::move(first, kept.end(), std::back_inserter(over));
  kept.erase(first, kept.end());
}

}  // namespace dtensor
