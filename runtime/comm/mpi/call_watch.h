// CallWatch: ends this process where a call does not return though the world has failed.
//
// Nobody can take a thread out of a call into another library. OpenMPI's TCP may never return from
// a call, not even from one that does not block, once a peer has died: it tries for ever to write
// to the connection. The error of the world then reaches nobody in this process, which would stay
// there for good. So a thread watches, which sleeps until the world fails. A call that lasts for
// all of `grace` after that ends the process: one line on stderr, and _exit(1), without the
// functions of atexit, of which MPI's would hang as well. (MPI's own default for errors,
// MPI_ERRORS_ARE_FATAL, ends processes too.) A process whose call returns in time is left alone,
// and so is one that is within no call.
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

// Which call a thread is within, if any. That thread calls Enter and Leave in turn, another one the
// rest.
class CallMark {
 public:
  // `name` is a literal.
  void Enter(const char* name) {
    name_.store(name, std::memory_order_relaxed);
    number_.store(++last_, std::memory_order_release);
  }
  // Never returns once End has returned true for the call.
  void Leave() {
    uint64_t call = last_++;
    if (!number_.compare_exchange_strong(call, last_, std::memory_order_acq_rel)) StayForGood();
  }

  // Odd within a call, another one for each.
  uint64_t number() const { return number_.load(std::memory_order_acquire); }
  // Whether the thread is still within that call, which it then does not leave.
  bool End(uint64_t call) { return number_.compare_exchange_strong(call, kEnded); }
  const char* name() const { return name_.load(std::memory_order_relaxed); }  // of the call

 private:
  static constexpr uint64_t kEnded = ~uint64_t{0};
  [[noreturn]] static void StayForGood();

  uint64_t last_ = 0;  // the calling thread's
  std::atomic<uint64_t> number_ = 0;
  std::atomic<const char*> name_ = nullptr;
};

struct CallWatchOptions {
  std::string who;  // calls: "rank 2"
  // In which a call may still return: those of MPI that do take milliseconds, and the ranks hear
  // of a failure within two seconds of each other. Time in which the process is stopped is none.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  // Looks for a failure a few times each second, for a world that tells nobody of it.
  bool polls = false;
};

class CallWatch {
 public:
  // Why calls are to end; OK while all is well. Thread-safe, as another thread asks; no longer
  // asked once the watch is destroyed.
  using Failure = std::function<absl::Status()>;
  // Throws std::system_error where there is no thread to be had.
  CallWatch(Failure failure, CallWatchOptions options);
  // Requires: no call is under way.
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // There may be a failure. Thread-safe; does not ask for it.
  void Wake();

  // What `call` returns, which counts as under way until then. One at a time, of one thread;
  // `name` is a literal. Throws nothing.
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
