// CallWatch: ends this process if a call does not return although the world has failed.
//
// Nothing can take a thread out of a call into another library. Once a peer has died, OpenMPI's TCP
// may never return from a call, even a non-blocking one: it tries for ever to write to the
// connection. The world's error then reaches nobody in this process, which would hang for good.
// Therefore a thread watches, which sleeps until the world fails. If one call then lasts for all of
// `grace`, the thread ends the process: one line on stderr, and _exit(1), without the functions of
// atexit, among which MPI's would hang as well. (MPI's own default for errors,
// MPI_ERRORS_ARE_FATAL, ends processes too.) If the call returns in time, or if there is no call,
// the process is left alone.
#ifndef DTENSOR_RUNTIME_COMM_MPI_CALL_WATCH_H_
#define DTENSOR_RUNTIME_COMM_MPI_CALL_WATCH_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace dtensor {

// Records which call a thread is in, if any. That thread calls Enter and Leave alternately, another
// thread calls the other functions.
class CallMark {
 public:
  // `name` is a literal.
  void Enter(const char* name) {
    name_.store(name, std::memory_order_relaxed);
    number_.store(++last_, std::memory_order_release);
  }
  // Never returns if End has returned true for the call.
  void Leave() {
    uint64_t call = last_++;
    if (!number_.compare_exchange_strong(call, last_, std::memory_order_acq_rel)) StayForGood();
  }

  // Odd during a call, and different for each call.
  uint64_t number() const { return number_.load(std::memory_order_acquire); }
  // Returns whether the thread is still in that call; if so, it will never leave the call.
  bool End(uint64_t call) { return number_.compare_exchange_strong(call, kEnded); }
  const char* name() const { return name_.load(std::memory_order_relaxed); }  // of the current call

 private:
  static constexpr uint64_t kEnded = ~uint64_t{0};
  [[noreturn]] static void StayForGood();

  uint64_t last_ = 0;  // the calling thread's
  std::atomic<uint64_t> number_ = 0;
  std::atomic<const char*> name_ = nullptr;
};

struct CallWatchOptions {
  std::string who;  // makes the calls: "rank 2"
  // The time in which a call may still return. MPI calls that do return take milliseconds, and the
  // ranks learn of a failure within two seconds of each other. Time in which the process is stopped
  // does not count.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  // If true, checks for a failure a few times each second, for a world that does not report it.
  bool polls = false;
};

class CallWatch {
 public:
  // Why calls should end; OK while all is well. Must be thread-safe, since another thread calls it.
  // Not called any more once the watch is destroyed.
  using Failure = std::function<absl::Status()>;
  // Throws std::system_error if no thread can be created.
  CallWatch(Failure failure, CallWatchOptions options);
  // Requires: no call is in progress.
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Says that there may be a failure. Thread-safe; does not call Failure itself.
  void Wake();

  // Runs `call`, which counts as in progress until it returns, and returns its result. One at a
  // time, always from the same thread; `name` is a literal. Throws nothing.
  template <typename Function>
  auto Call(const char* name, Function call) {
    mark_.Enter(name);
    const auto result = call();
    mark_.Leave();
    return result;
  }

 private:
  void Run();
  bool AwaitFailure();
  bool Sleep();
  uint64_t AwaitStuckCall();
  [[noreturn]] void EndProcess() const;

  const Failure failure_;
  const CallWatchOptions options_;
  CallMark mark_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MPI_CALL_WATCH_H_
