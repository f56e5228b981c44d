// ThreadsState: the world of rank threads (RunLocalRanks), for a communicator that stands in for
// theirs.
#ifndef DTENSOR_RUNTIME_COMM_TESTING_THREADS_STATE_H_
#define DTENSOR_RUNTIME_COMM_TESTING_THREADS_STATE_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/world_state.h"

namespace dtensor {

class ThreadsState final : public WorldState {
 public:
  explicit ThreadsState(Communicator& threads) : threads_(threads) {}
  absl::Status Fail(int, const absl::Status& reason) override { return threads_.Fail(reason); }
  absl::Status failure() const override { return threads_.failure(); }
  bool failed() const override { return !failure().ok(); }
  void TellOfFailure(std::function<void()>) override {}  // nobody asks
  std::optional<absl::Status> returned(int) const override { return std::nullopt; }
  double timeout_seconds() const override { return 60; }

 private:
  Communicator& threads_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_THREADS_STATE_H_
