#include "dtensor/runtime/comm/world_state.h"

#include <chrono>
#include <thread>

namespace dtensor {

absl::Status AwaitFailure(const WorldState& world) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!world.failed() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return world.failure();
}

}  // namespace dtensor
