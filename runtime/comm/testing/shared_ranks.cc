#include "dtensor/runtime/comm/testing/shared_ranks.h"

#include <utility>

#include "dtensor/runtime/comm/shared/board.h"
#include "dtensor/runtime/comm/shared/shared_world.h"
#include "dtensor/runtime/comm/testing/threads_state.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"

namespace dtensor {

struct SharedRank::Parts {
  Parts(int rank, int size, std::unique_ptr<WorldState> state_in,
        std::shared_ptr<SharedArena> arena_in, std::vector<HostRank> all, int max_delay_us)
      : state(std::move(state_in)),
        arena(std::move(arena_in)),
        device(MakeCpuDevice(arena)),
        ranks(rank, *arena, *device, std::move(all)),
        world(size, ranks, *state),
        communicator(world, rank, *device, /*seed=*/1, max_delay_us) {}
  ~Parts() { communicator.End(); }

  std::unique_ptr<WorldState> state;
  std::shared_ptr<SharedArena> arena;
  std::unique_ptr<Device> device;
  HostRanks ranks;
  SharedWorld world;
  SharedCommunicator communicator;
};

SharedRank::SharedRank(int rank, int size, std::unique_ptr<WorldState> state,
                       std::shared_ptr<SharedArena> arena, std::vector<HostRank> all,
                       int max_delay_us)
    : parts_(std::make_unique<Parts>(rank, size, std::move(state), std::move(arena), std::move(all),
                                     max_delay_us)) {}

SharedRank::~SharedRank() = default;

Communicator& SharedRank::communicator() { return parts_->communicator; }
Device& SharedRank::device() { return *parts_->device; }
SharedArena& SharedRank::arena() { return *parts_->arena; }

SharedRanks::SharedRanks(int size) {
  for (int rank = 0; rank < size; ++rank) {
    arenas_.push_back(SharedArena::Create(int64_t{1} << 32, sizeof(Board)).value());
  }
}

SharedRank SharedRanks::Make(Communicator& threads, int max_delay_us) {
  return Make(threads.rank(), std::make_unique<ThreadsState>(threads), max_delay_us);
}

SharedRank SharedRanks::Make(int rank, std::unique_ptr<WorldState> state, int max_delay_us) {
  std::vector<HostRank> all;
  for (const auto& arena : arenas_) {
    all.push_back({static_cast<int>(all.size()), arena->data(), arena->bytes()});
  }
  const int size = static_cast<int>(all.size());
  return SharedRank(rank, size, std::move(state), arenas_[rank], std::move(all), max_delay_us);
}

}  // namespace dtensor
