// LentThreads: threads of the program's pool, lent to the ranks of a world for one run.
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

// Runs a function on a thread of the program's, and does not wait for it.
using Executor = std::function<void(std::function<void()>)>;

class LentThreads {
 public:
  // Waits until n threads are there at the same time: ranks wait for each other, and no rank's
  // function begins before. A time-out after the call they go back, so that an `executor` which
  // waits for a free thread returns; one that waits for something else is waited for. Errors, after
  // which they have gone back, or go back as soon as they come: kInvalidArgument where `executor`
  // calls functions on the calling thread; kDeadlineExceeded, saying how many came; what `executor`
  // throws.
  static absl::StatusOr<LentThreads> Borrow(int n, const Executor& executor,
                                            std::chrono::steady_clock::duration timeout);
  LentThreads(LentThreads&&) = default;
  // Waits until those that were started have returned from `run`; the others go back.
  ~LentThreads();

  // Has each of them call run(its number), and does not wait. Once.
  void Start(std::function<void(int)> run);

 private:
  struct Gate;
  explicit LentThreads(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::shared_ptr<Gate> gate_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_LENT_THREADS_H_
