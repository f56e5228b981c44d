// LentThreads: threads of the program's own pool, lent to the ranks of a world for one run.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_LENT_THREADS_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_LENT_THREADS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Runs a function on a thread of the program, and does not wait for it.
using Executor = std::function<void(std::function<void()>)>;

class LentThreads {
 public:
  // Calls `executor` n times, and waits until n threads are there at the same time: ranks wait for
  // each other, so no rank's function begins earlier. After `timeout` the threads that came are
  // given back, so that an `executor` that waits for a free thread can return. If it waits for
  // something else, this function waits for it. After an error all threads are given back, also
  // those that come later. Errors: kInvalidArgument if `executor` calls functions on the calling
  // thread; kDeadlineExceeded, saying how many threads came; what `executor` throws.
  static absl::StatusOr<LentThreads> Borrow(int n, const Executor& executor,
                                            std::chrono::steady_clock::duration timeout);
  LentThreads(LentThreads&&) = default;
  // Waits until the threads that were started have returned from `run`, and gives back the others.
  ~LentThreads();

  // Lets each thread call run(its number), and does not wait. Call it once.
  void Start(std::function<void(int)> run);

 private:
  struct Gate;
  explicit LentThreads(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::shared_ptr<Gate> gate_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_LENT_THREADS_H_
