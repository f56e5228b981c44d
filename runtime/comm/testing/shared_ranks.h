// SharedRanks: rank threads that exchange as processes of one host do, by boards and arenas, over
// one mapping of each arena: so that ThreadSanitizer sees both sides. Failures are the threads'
// own.
//
//   SharedRanks shared(n);
//   RunLocalRanks(n, [&](Communicator& threads, Device&) {
//     SharedRank rank = shared.Make(threads);
//     ... rank.communicator(), with tensors of rank.device() ...
#ifndef DTENSOR_RUNTIME_COMM_TESTING_SHARED_RANKS_H_
#define DTENSOR_RUNTIME_COMM_TESTING_SHARED_RANKS_H_

#include <memory>
#include <vector>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/shared/host_ranks.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// One rank's.
class SharedRank {
 public:
  // The state and the arenas outlive it. Sleeps at random up to max_delay_us before each exchange.
  SharedRank(int rank, int size, std::unique_ptr<WorldState> state,
             std::shared_ptr<SharedArena> arena, std::vector<HostRank> all, int max_delay_us);
  ~SharedRank();
  Communicator& communicator();
  Device& device();
  SharedArena& arena();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class SharedRanks {
 public:
  explicit SharedRanks(int size);
  // For a rank's thread; once for each rank. `threads` outlives it, and so does this.
  SharedRank Make(Communicator& threads, int max_delay_us = 0);
  SharedRank Make(int rank, std::unique_ptr<WorldState> state, int max_delay_us = 0);

 private:
  std::vector<std::shared_ptr<SharedArena>> arenas_;  // [rank]
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_SHARED_RANKS_H_
