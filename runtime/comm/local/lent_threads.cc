#include "dtensor/runtime/comm/local/lent_threads.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

// Where the threads wait for each other. Every function given to the pool shares it, since the pool
// may call a function long after nobody waits for it any more.
struct LentThreads::Gate {
  // Until all are there, no thread waits longer than the time-out: `executor` may be waiting for
  // one.
  enum Phase { kGathering, kGathered, kStarted, kClosed };

  explicit Gate(std::chrono::steady_clock::duration timeout)
      : timeout(timeout), deadline(std::chrono::steady_clock::now() + timeout) {}

  // On the pool's thread.
  void Pass(int number) {
    std::function<void(int)> to_run;
    {
      std::unique_lock lock(mutex);
      if (phase != kGathering) return;
      if (std::this_thread::get_id() == borrower) {
        is_inline = true;  // nobody could start it: the borrower itself is in this call
        phase = kClosed;
        return;
      }
      ++arrived;
      changed.notify_all();
      if (!AwaitStart(lock)) return;
      to_run = run;
    }
    to_run(number);
    to_run = nullptr;
    std::lock_guard lock(mutex);
    --arrived;
    changed.notify_all();
  }

  // Whether the start comes.
  bool AwaitStart(std::unique_lock<std::mutex>& lock) {
    const auto decided = [this] { return phase != kGathering; };
    if (!changed.wait_until(lock, deadline, decided)) {
      phase = kClosed;
      changed.notify_all();
    }
    changed.wait(lock, [this] { return phase == kStarted || phase == kClosed; });
    return phase == kStarted;
  }

  void Enter(Phase next) {
    {
      std::lock_guard lock(mutex);
      if (phase == kStarted || phase == kClosed) return;
      phase = next;
    }
    changed.notify_all();
  }

  void AwaitReturn() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return phase != kStarted || arrived == 0; });
  }

  absl::Status AwaitAll(int n) {
    std::unique_lock lock(mutex);
    if (is_inline) {
      return InvalidArgument(
          {"RunOptions::executor called a rank's function on the thread that runs the world; it "
           "must hand each to a thread of its own, and return"});
    }
    changed.wait_until(lock, deadline, [&] { return phase == kClosed || arrived == n; });
    if (phase == kGathering && arrived == n) {
      phase = kGathered;
      changed.notify_all();  // they now wait for the start, without a time-out
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "RunOptions::executor brought ", arrived, " of ", n, " threads in ",
        std::chrono::duration<double>(timeout).count(),
        " s; ranks wait for each other, so a pool needs a free thread for each at the same time, "
        "and hands a function over without waiting for it"));
  }

  const std::chrono::steady_clock::duration timeout;
  const std::chrono::steady_clock::time_point deadline;
  const std::thread::id borrower = std::this_thread::get_id();
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  Phase phase = kGathering;
  bool is_inline = false;
  int arrived = 0;  // and have not returned from `run`
  std::function<void(int)> run;
};

absl::StatusOr<LentThreads> LentThreads::Borrow(int n, const Executor& executor,
                                                std::chrono::steady_clock::duration timeout) {
  LentThreads threads(std::make_shared<Gate>(timeout));
  DT_RETURN_IF_ERROR(NoThrow([&] {
    for (int i = 0; i < n; ++i) executor([gate = threads.gate_, i] { gate->Pass(i); });
    return absl::OkStatus();
  }));
  DT_RETURN_IF_ERROR(threads.gate_->AwaitAll(n));
  return threads;
}

LentThreads::~LentThreads() {
  if (gate_ == nullptr) return;  // moved from
  gate_->Enter(Gate::kClosed);
  gate_->AwaitReturn();
}

void LentThreads::Start(std::function<void(int)> run) {
  gate_->run = std::move(run);  // read by threads that see the new phase
  gate_->Enter(Gate::kStarted);
}

}  // namespace dtensor
