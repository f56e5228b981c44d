// How a rank waits for another: it spins, yields, and sleeps; and what ends a wait that cannot
// succeed.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/core/no_throw.h"

namespace dtensor {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kLookForCycles(1);
constexpr Seconds kSlice(0.1);  // of a sleep

}  // namespace

absl::Status World::AwaitSlowly(const Wait& wait) {
  uint64_t alarm = 0;
  absl::Status status;
  const bool over = spinning_.Until([&] {
    if (wait.over()) return true;
    if (const uint64_t now = alarm_.load(std::memory_order_seq_cst); now != alarm) {
      alarm = now;
      status = CheckAlarm(wait);
    }
    return !status.ok();
  });
  if (over) return status;
  return Sleep(wait, alarm);
}

// A long wait is published, so that others can see which rank waits for which.
absl::Status World::Sleep(const Wait& wait, uint64_t alarm) {
  {
    std::lock_guard lock(mutex_);
    ranks_[wait.rank].wait = &wait;
  }
  absl::Status status = NoThrow([&] { return SleepPublished(wait, alarm); });
  std::lock_guard lock(mutex_);
  ranks_[wait.rank].wait = nullptr;
  return status;
}

absl::Status World::SleepPublished(const Wait& wait, uint64_t alarm) {
  Seconds waited(0), looked(0);
  while (true) {
    const auto start = Clock::now();
    const Seconds slice = std::min(kSlice, timeout_ - waited);
    wait.group.SleepUntil(start + std::chrono::duration_cast<Clock::duration>(slice), [&] {
      return wait.over() || alarm_.load(std::memory_order_seq_cst) != alarm;
    });
    if (wait.over()) return absl::OkStatus();
    alarm = alarm_.load(std::memory_order_seq_cst);
    if (absl::Status status = CheckAlarm(wait); !status.ok()) return status;
    // While the process is stopped, nobody can do what is waited for.
    waited += std::min<Seconds>(Clock::now() - start, 3 * kSlice);
    const bool timed_out = waited >= timeout_;
    if (!timed_out && waited - looked < kLookForCycles) continue;
    looked = waited;
    if (absl::Status status = CheckSilence(wait, timed_out); !status.ok()) return status;
  }
}

// A rank failed or left since `wait` was last checked.
absl::Status World::CheckAlarm(const Wait& wait) {
  absl::Status reason;
  {
    std::lock_guard lock(mutex_);
    const Rank& peer = ranks_[wait.peer()];
    // A rank that left has published all that it ever will.
    if (!failure_.ok() || !peer.left || wait.over()) return failure_;
    reason = ReturnedWhile(peer.returned, wait.rank, wait.ToString());
  }
  return Fail(wait.peer(), reason);
}

// The wait lasts: is it part of a cycle, or too long?
absl::Status World::CheckSilence(const Wait& wait, bool timed_out) {
  absl::Status reason;
  int culprit = wait.rank;
  {
    std::lock_guard lock(mutex_);
    const std::vector<WaitText> chain = ChainFrom(wait.rank);
    if (chain.empty()) return absl::OkStatus();
    culprit = chain.back().peer;
    reason = TroubleOf(chain, timed_out, timeout_.count());
  }
  return reason.ok() ? reason : Fail(culprit, reason);
}

// The wait of `rank`, of the rank that it waits for, and so on, up to a rank that does not wait or
// that the chain has met before. What it says is true at one moment: a rank publishes its wait
// after whatever it posted before, so a published wait that is not over shows a rank that will not
// move by itself.
std::vector<WaitText> World::ChainFrom(int rank) const {
  std::vector<WaitText> chain;
  std::vector<bool> met(ranks_.size());
  for (const Wait* wait = ranks_[rank].wait; wait != nullptr && !wait->over();
       wait = ranks_[wait->peer()].wait) {
    chain.push_back({wait->rank, wait->peer(), wait->ToString()});
    met[wait->rank] = true;
    if (met[wait->peer()]) break;
  }
  return chain;
}

}  // namespace dtensor
