// SharedWorld: what those ranks of a world that are processes of one host have in common, as one of
// them sees it: where groups meet, and which rank waits for which. It is a World of
// PullCommunicator; World (local) is the one for threads. The state of the whole world is in
// WorldState.
//
// A wait spins, then yields, then sleeps. It also ends when the world fails, when the rank that is
// waited for has returned, when ranks wait for each other in a cycle, and after the time-out. Time
// in which this process was stopped does not count.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_SHARED_WORLD_H_
#define DTENSOR_RUNTIME_COMM_SHARED_SHARED_WORLD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/pulls/exchange_wait.h"
#include "dtensor/runtime/comm/pulls/pull_communicator.h"
#include "dtensor/runtime/comm/pulls/spinning.h"
#include "dtensor/runtime/comm/shared/host_ranks.h"
#include "dtensor/runtime/comm/shared/shared_group.h"
#include "dtensor/runtime/comm/wait_chain.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct BoardWait;  // board_wait.h

// Belongs to one rank's thread, except for its const members. All groups are of ranks of this host.
class SharedWorld {
 public:
  using Group = SharedGroup;
  using Wait = ExchangeWait<SharedGroup>;  // of this rank

  // For a world of `size` ranks, of which `host` has some. `host` and `state` outlive it.
  // `meanwhile` is called while this rank waits, more often if it returns that there is more to do.
  // It must exchange nothing through this world.
  SharedWorld(int size, HostRanks& host, WorldState& state, std::function<bool()> meanwhile = {});

  int size() const { return size_; }
  std::shared_ptr<SharedGroup> GroupOf(absl::Span<const int> ranks);

  // Returns the world's failure. From then on, what this rank posted may be overwritten.
  absl::Status Fail(int rank, const absl::Status& reason);
  bool failed() const { return state_.failed(); }
  absl::Status failure() const { return state_.failure(); }
  absl::Status Met(const absl::Status& failure, int rank, const Collective& collective) const {
    return InOp(failure, rank, collective);
  }

  // EndReading fails if a peer withdrew meanwhile, so whatever was read from that peer is not used.
  // Therefore nobody has to wait for readers, whose processes may be stopped.
  void BeginReading(int) {}
  absl::Status EndReading(int rank, const SharedGroup& group);
  bool reading(int) const { return false; }

  // Errors: the world's failure.
  absl::Status Await(const Wait& wait) {
    return wait.over() ? absl::OkStatus() : AwaitSlowly(wait);
  }

 private:
  absl::Status AwaitSlowly(const Wait& wait);
  absl::Status Sleep(const Wait& wait);
  absl::Status CheckPeer(const Wait& wait);
  absl::Status CheckSilence(const Wait& wait, bool timed_out);
  std::vector<WaitText> ChainFrom(const Wait& wait) const;
  bool IsOver(const BoardWait& note) const;

  const int size_;
  HostRanks& host_;
  WorldState& state_;
  const std::function<bool()> meanwhile_;
  const Spinning spinning_;
};

using SharedCommunicator = PullCommunicator<SharedWorld>;

extern template class PullCommunicator<SharedWorld>;

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_SHARED_WORLD_H_
