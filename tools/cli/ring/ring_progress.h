// How far dtensor ring --run is: a share of the whole for the ring, by its exchanges, the rest for
// what the results are held against, which takes longer where that is computed in long double.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_PROGRESS_H_
#define DTENSOR_TOOLS_CLI_RING_RING_PROGRESS_H_

#include <cstdint>
#include <functional>

#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"

namespace dtensor::cli {

// Told of a fraction that is done, 0 to 1, which never falls.
using TellFraction = std::function<void(double done)>;

// What part of the time the ring takes, with so many cores: above 0 and below 1. From what kernels
// and the reference take for a pair of a query and a key on one core; an estimate.
double RingShare(const RingProblem& problem, int cores);

// Tells after each exchange that a rank of the ring finishes, forward and backward. Requires: a
// rank of the mesh, whose communicator observes as long as this lives.
class RingStepCounter final : public ExchangeObserver {
 public:
  RingStepCounter(Communicator& communicator, const RingSchedule& schedule, TellFraction tell);
  ~RingStepCounter();
  RingStepCounter(const RingStepCounter&) = delete;
  RingStepCounter& operator=(const RingStepCounter&) = delete;

  void Begins(const Collective&, bool) override {}
  void Finishes(const Collective&) override {}
  void Finished(const Collective&) override;
  void Drops(const Collective&) override {}
  void Counted(const Collective&, const CommunicatorTraffic&) override {}

 private:
  Communicator& communicator_;
  const TellFraction tell_;
  const int64_t expected_;
  int64_t finished_ = 0;
};

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_PROGRESS_H_
