#include "dtensor/runtime/comm/local/world_parts.h"

#include <algorithm>
#include <utility>

#include "dtensor/runtime/comm/kept_worlds.h"

namespace dtensor {

bool WorldParts::has_tensors() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device->tensors() > 0; });
}

void LetGo(std::unique_ptr<WorldParts> world) {
  static auto& kept = *new KeptWorlds<WorldParts>;
  if (world->has_tensors()) {
    for (const auto& device : world->devices) device->set_kept_bytes(0);
  }
  kept.LetGo(std::move(world));
}

}  // namespace dtensor
