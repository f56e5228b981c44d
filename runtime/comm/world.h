// World: what the ranks of one process share. Its groups, its one failure, and who waits for whom.
//
// Thread-safe. Synchronised with the standard library alone: TSan cannot see into Abseil's mutexes.
#ifndef DTENSOR_RUNTIME_COMM_WORLD_H_
#define DTENSOR_RUNTIME_COMM_WORLD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/rank_group.h"

namespace dtensor {

class World {
 public:
  // Waits until `member` of `group` reaches `stage` of exchange `number`.
  struct Wait {
    int rank;  // who waits
    RankGroup& group;
    int member;
    RankGroup::Stage stage;
    uint64_t number;
    absl::string_view op;

    int peer() const { return group.ranks()[member]; }
    bool over() const { return group.Reached(member, stage, number); }
    std::string ToString() const;  // "op "add" (call 3 of ranks [0, 1])"
  };

  World(int size, double timeout_seconds);

  int size() const { return static_cast<int>(ranks_.size()); }
  RankGroup& GroupOf(absl::Span<const int> ranks);  // made when first asked for

  // The first failure is kept, as "rank R: reason"; returns it.
  absl::Status Fail(int rank, const absl::Status& reason);
  bool failed() const { return failed_.load(std::memory_order_seq_cst); }
  absl::Status failure() const;

  // `rank` will take part in nothing more, because its function returned `status`. Whoever waits
  // for it now or later fails the world.
  void Leave(int rank, const absl::Status& status);

  // `rank` reads no peer's memory from here on. Said by a rank that leaves an exchange with an
  // error.
  void Retire(int rank) { ranks_[rank].retired.store(true, std::memory_order_release); }
  bool retired(int rank) const { return ranks_[rank].retired.load(std::memory_order_acquire); }

  // Errors: the world's failure. An OK does not say that the world still works.
  absl::Status Await(const Wait& wait) {
    return wait.over() ? absl::OkStatus() : AwaitSlowly(wait);
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    std::atomic<bool> retired = false;
    // Below: under mutex_.
    const Wait* wait = nullptr;  // only what lasts: see Sleep()
    bool left = false;
    absl::Status returned;  // if left
  };

  absl::Status AwaitSlowly(const Wait& wait);
  absl::Status Sleep(const Wait& wait, uint64_t alarm);
  absl::Status SleepPublished(const Wait& wait, uint64_t alarm);
  absl::Status CheckAlarm(const Wait& wait);
  absl::Status CheckSilence(const Wait& wait, bool timed_out);
  std::vector<const Wait*> ChainFrom(int rank) const;  // Requires: mutex_ is held.
  void WakeAll();

  const std::chrono::duration<double> timeout_;
  const int spins_, yields_;
  std::atomic<bool> failed_ = false;
  std::atomic<uint64_t> alarm_ = 0;  // how often a rank failed or left: a reason to look

  mutable std::mutex mutex_;
  absl::Status failure_;
  std::vector<Rank> ranks_;

  std::mutex groups_mutex_;
  std::map<std::vector<int>, std::unique_ptr<RankGroup>> groups_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_WORLD_H_
