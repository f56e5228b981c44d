// World: what the ranks of one process share: its groups, its one failure, and which rank waits for
// which.
//
// Thread-safe. Synchronised by the standard library alone, since TSan cannot see into Abseil's
// mutexes.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_WORLD_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_WORLD_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/local/rank_group.h"
#include "dtensor/runtime/comm/pulls/exchange_wait.h"
#include "dtensor/runtime/comm/pulls/spinning.h"
#include "dtensor/runtime/comm/wait_chain.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class World {
 public:
  using Group = RankGroup;
  using Wait = ExchangeWait<RankGroup>;

  World(int size, double timeout_seconds);  // Requires: a time above 0

  int size() const { return static_cast<int>(ranks_.size()); }
  // The group is created when it is first asked for, and destroyed with its last owner. All its
  // members have then completed the same number of its exchanges, so they all count from 1 in the
  // next one.
  std::shared_ptr<RankGroup> GroupOf(absl::Span<const int> ranks);
  int num_groups();  // that exist now

  // Keeps the first failure, as "rank R: reason", and returns it.
  absl::Status Fail(int rank, const absl::Status& reason);
  bool failed() const { return failed_.load(std::memory_order_seq_cst); }
  absl::Status failure() const;
  absl::Status Met(const absl::Status& failure, int, const Collective&) const { return failure; }
  std::chrono::duration<double> timeout() const { return timeout_; }

  // `rank` takes part in nothing more, since its function returned `status`. Any rank that waits
  // for it, now or later, fails the world.
  void Leave(int rank, const absl::Status& status);
  // Lets all ranks run another function. Requires: none has been called yet or all have left, and
  // no rank waits.
  void Return();

  // Marks the time in which `rank` may read what its peers posted. A reader sets this mark before
  // it checks for a failure; a peer that fails publishes the failure before it checks for readers.
  // As all of that is sequentially consistent, at least one of the two sees the other.
  void BeginReading(int rank) { ranks_[rank].reading.store(true, std::memory_order_seq_cst); }
  absl::Status EndReading(int rank, const RankGroup&) {
    ranks_[rank].reading.store(false, std::memory_order_release);
    return absl::OkStatus();
  }
  bool reading(int rank) const { return ranks_[rank].reading.load(std::memory_order_seq_cst); }

  // For threads that watch the ranks from outside. `alarm` counts how often a rank failed or left.
  uint64_t alarm() const { return alarm_.load(std::memory_order_seq_cst); }
  void AwaitAlarm(uint64_t seen, std::chrono::steady_clock::time_point until);
  bool all_left() const;
  std::vector<int> running() const;     // those that have not left, ascending
  absl::Status returned_error() const;  // of the first rank that left with one, as Fail() words it

  // Errors: the world's failure. OK does not mean that the world still works.
  absl::Status Await(const Wait& wait) {
    return wait.over() ? absl::OkStatus() : AwaitSlowly(wait);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // One cache line for each, since ranks write `reading` in every exchange.
  struct alignas(64) Rank {
    std::atomic<bool> reading = false;
    // Below: under mutex_.
    const Wait* wait = nullptr;  // only while it sleeps: see Sleep()
    bool left = false;
    absl::Status returned;  // if left
  };

  absl::Status AwaitSlowly(const Wait& wait);
  absl::Status Sleep(const Wait& wait, uint64_t alarm);
  absl::Status SleepPublished(const Wait& wait, uint64_t alarm);
  absl::Status CheckAlarm(const Wait& wait);
  absl::Status CheckSilence(const Wait& wait, bool timed_out);
  std::vector<WaitText> ChainFrom(int rank) const;  // Requires: mutex_ is held.
  void WakeAll();

  const std::chrono::duration<double> timeout_;
  const Spinning spinning_;
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> alarm_ = 0;  // how often a rank failed or left; sleepers then look

  mutable std::mutex mutex_;
  std::condition_variable alarmed_;
  absl::Status failure_, returned_error_;
  int left_ = 0;
  std::vector<Rank> ranks_;

  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::weak_ptr<RankGroup>> groups_;
  size_t most_groups_ = 64;  // at this size, entries of destroyed groups are erased
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_WORLD_H_
