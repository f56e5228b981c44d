#include "dtensor/runtime/comm/local/world_parts.h"

#include <algorithm>
#include <utility>

#include "dtensor/runtime/comm/kept_worlds.h"

namespace dtensor {

bool WorldParts::has_tensors() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& device) { return device->tensors() > 0; });
}

void WorldParts::ReleaseFreeMemory() {
  for (const auto& device : devices) device->set_kept_bytes(0);
}

void LetGo(std::unique_ptr<WorldParts> world) {
  static auto& kept = *new KeptWorlds<WorldParts>;
  kept.LetGo(std::move(world));
}

}  // namespace dtensor
