// How a rank waits for another: it spins, yields, and sleeps; and what ends a wait that leads
// nowhere.
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/core/no_throw.h"

namespace dtensor {
namespace {

constexpr std::chrono::seconds kLookForCycles(1);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// "rank 0 waits in op "a" (call 3 of ranks [0, 1]) for rank 1, which waits in ... for rank 0"
std::string ChainToString(absl::Span<const World::Wait* const> chain) {
  std::string text = absl::StrCat("rank ", chain.front()->rank);
  const char* separator = " waits in ";
  for (const World::Wait* wait : chain) {
    absl::StrAppend(&text, separator, wait->ToString(), " for rank ", wait->peer());
    separator = ", which waits in ";
  }
  return text;
}

}  // namespace

std::string World::Wait::ToString() const {
  return absl::StrCat("op \"", op, "\" (call ", number, " of ranks [",
                      absl::StrJoin(group.ranks(), ", "), "])");
}

absl::Status World::AwaitSlowly(const Wait& wait) {
  uint64_t alarm = 0;
  for (int turn = 0; turn < spins_ + yields_; ++turn) {
    if (wait.over()) return absl::OkStatus();
    if (const uint64_t now = alarm_.load(std::memory_order_seq_cst); now != alarm) {
      alarm = now;
      if (absl::Status status = CheckAlarm(wait); !status.ok()) return status;
    }
    if (turn < spins_) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  return Sleep(wait, alarm);
}

// A wait that lasts is published, so that others can see who waits for whom.
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
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(timeout_);
  auto look = start + kLookForCycles;
  while (true) {
    wait.group.SleepUntil(std::min(deadline, look), [&] {
      return wait.over() || alarm_.load(std::memory_order_seq_cst) != alarm;
    });
    if (wait.over()) return absl::OkStatus();
    alarm = alarm_.load(std::memory_order_seq_cst);
    if (absl::Status status = CheckAlarm(wait); !status.ok()) return status;
    const auto now = Clock::now();
    if (now < std::min(deadline, look)) continue;
    if (absl::Status status = CheckSilence(wait, now >= deadline); !status.ok()) return status;
    look = now + kLookForCycles;
  }
}

// Somebody failed or left since `wait` was looked at last.
absl::Status World::CheckAlarm(const Wait& wait) {
  absl::Status reason;
  {
    std::lock_guard lock(mutex_);
    const Rank& peer = ranks_[wait.peer()];
    // A rank that left has published all that it ever will.
    if (!failure_.ok() || !peer.left || wait.over()) return failure_;
    const std::string waiter =
        absl::StrCat("rank ", wait.rank, " waits for it in ", wait.ToString());
    reason = peer.returned.ok()
                 ? absl::AbortedError(absl::StrCat("returned while ", waiter))
                 : absl::Status(peer.returned.code(),
                                absl::StrCat(peer.returned.message(), " (", waiter, ")"));
  }
  return Fail(wait.peer(), reason);
}

// The wait lasts: is it part of a cycle, or too long?
absl::Status World::CheckSilence(const Wait& wait, bool timed_out) {
  absl::Status reason;
  int culprit = wait.rank;
  {
    std::lock_guard lock(mutex_);
    const std::vector<const Wait*> chain = ChainFrom(wait.rank);
    if (chain.empty()) return absl::OkStatus();
    culprit = chain.back()->peer();
    const auto cycle =
        std::find_if(chain.begin(), chain.end(), [&](const Wait* w) { return w->rank == culprit; });
    if (cycle != chain.end()) {
      reason = absl::FailedPreconditionError(
          absl::StrCat("ranks wait for each other in a cycle: ",
                       ChainToString(absl::MakeConstSpan(chain).subspan(cycle - chain.begin())),
                       "; all ranks must make the calls of their groups in one common order"));
    } else if (timed_out) {
      reason = absl::DeadlineExceededError(
          absl::StrCat("silent for ", timeout_.count(), " s while ", ChainToString(chain)));
    }
  }
  return reason.ok() ? reason : Fail(culprit, reason);
}

// The wait of `rank`, of the rank that it waits for, and so on, up to a rank that does not wait or
// that the chain has met before. What it says is true at one moment: a rank publishes its wait
// after whatever it posted before, so a published wait that is not over shows a rank that will not
// move by itself.
std::vector<const World::Wait*> World::ChainFrom(int rank) const {
  std::vector<const Wait*> chain;
  std::vector<bool> met(ranks_.size());
  for (const Wait* wait = ranks_[rank].wait; wait != nullptr && !wait->over();
       wait = ranks_[wait->peer()].wait) {
    chain.push_back(wait);
    met[wait->rank] = true;
    if (met[wait->peer()]) break;
  }
  return chain;
}

}  // namespace dtensor
