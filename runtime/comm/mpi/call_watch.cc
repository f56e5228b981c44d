#include "dtensor/runtime/comm/mpi/call_watch.h"

#include <unistd.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/quiet_thread.h"

namespace dtensor {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStep(100);  // between two checks
// How long to wait for a line on stderr: its reader may have stopped, or MPI may write too much.
constexpr milliseconds kSaying(2000);

// Writes on a thread of its own, so that a full pipe blocks that one and not this one. It inherits
// this thread's blocking of SIGPIPE. If no thread can be created, writes nothing.
void SayOnStderr(const std::string& line) {
  auto& said = *new std::promise<void>;  // used for as long as that thread lives
  const absl::Status begun = NoThrow([&] {
    std::thread([&said, line] {
      (void)!write(STDERR_FILENO, line.data(), line.size());
      said.set_value();
    }).detach();
    return absl::OkStatus();
  });
  if (begun.ok()) said.get_future().wait_for(kSaying);
}

}  // namespace

void CallMark::StayForGood() {
  while (true) pause();
}

CallWatch::CallWatch(Failure failure, CallWatchOptions options)
    : failure_(std::move(failure)),
      options_(std::move(options)),
      thread_(QuietThread([this] { Run(); })) {}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CallWatch::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

// --- The thread.

void CallWatch::Run() {
  if (!AwaitFailure()) return;
  while (const uint64_t call = AwaitStuckCall()) {
    if (mark_.End(call)) EndProcess();
  }
}

// Returns false if the watch ends first.
bool CallWatch::AwaitFailure() {
  while (failure_().ok()) {
    std::unique_lock lock(mutex_);
    const auto is_called = [this] { return stop_ || woken_; };
    if (options_.polls) {
      changed_.wait_for(lock, kStep, is_called);
    } else {
      changed_.wait(lock, is_called);
    }
    if (stop_) return false;
    woken_ = false;
  }
  return true;
}

// Sleeps for one step; returns false if the watch has ended.
bool CallWatch::Sleep() {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, kStep, [this] { return stop_; });
}

// Returns the call in which the thread has been for all of the grace; 0 if the watch has ended. It
// counts steps instead of measuring time, since this process may be stopped for a while.
uint64_t CallWatch::AwaitStuckCall() {
  uint64_t call = 0;
  milliseconds left = options_.grace;
  while (Sleep()) {
    const uint64_t now = mark_.number();
    left = now == call ? left - kStep : options_.grace;
    call = now;
    if (call % 2 == 1 && left <= milliseconds(0)) return call;
  }
  return 0;
}

void CallWatch::EndProcess() const {
  const std::chrono::duration<double> grace = options_.grace;
  SayOnStderr(absl::StrCat("error: ", failure_().ToString(), " (", options_.who, ": ", mark_.name(),
                           " has not returned for ", grace.count(),
                           " s; no thread can be taken out of MPI, so this process ends; set "
                           "DTENSOR_TRANSPORT=tcp to send without MPI)\n"));
  _exit(1);
}

}  // namespace dtensor
