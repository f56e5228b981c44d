// HostMemory: a rank's arena, the arenas of the other ranks of its host, and exchanges among them.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_HOST_MEMORY_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_HOST_MEMORY_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/comm/shared/host_ranks.h"
#include "dtensor/runtime/comm/shared/shared_world.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Makes an arena for a rank in a world of `size`. If addresses are limited (ulimit -v), it leaves
// room for arenas of the same size for all other ranks. Errors: SharedArena's.
absl::StatusOr<std::shared_ptr<SharedArena>> MakeRankArena(int size);

class HostMemory {
 public:
  // Maps the arenas of the other ranks on `rank`'s host. `arena` is its own, from which `device`
  // takes its memory. `state` and `device` outlive the object. `meanwhile` is SharedWorld's.
  // Errors: ArenaView's, naming the rank.
  static absl::StatusOr<std::unique_ptr<HostMemory>> Open(int rank,
                                                          absl::Span<const HostCard> cards,
                                                          std::shared_ptr<SharedArena> arena,
                                                          Device& device, WorldState& state,
                                                          std::function<bool()> meanwhile);

  // The world is over: unmaps the others' arenas. Calls of the communicator are refused from now
  // on.
  void End();

  SharedCommunicator& communicator() { return *communicator_; }
  const HostRanks& ranks() const { return *ranks_; }

 private:
  HostMemory() = default;

  std::shared_ptr<SharedArena> arena_;
  std::vector<ArenaView> views_;
  std::unique_ptr<HostRanks> ranks_;
  std::unique_ptr<SharedWorld> world_;
  std::unique_ptr<SharedCommunicator> communicator_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_HOST_MEMORY_H_
