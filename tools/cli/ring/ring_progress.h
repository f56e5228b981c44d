// The progress of dtensor ring --run: one share for the ring, by its exchanges, the rest for
// computing the expected results, which takes longer if that is done in long double.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_PROGRESS_H_
#define DTENSOR_TOOLS_CLI_RING_RING_PROGRESS_H_

#include <cstdint>
#include <functional>

#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"

namespace dtensor::cli {

// Called with the fraction that is done, 0 to 1, which never decreases.
using TellFraction = std::function<void(double done)>;

// The share of the time that the ring takes, on that many cores: above 0 and below 1. An estimate,
// from the time that kernels and the reference take per pair of a query and a key on one core.
double RingShare(const RingProblem& problem, int cores);

// Reports after each exchange that a rank of the ring finishes, forward and backward. Requires: a
// rank of the mesh; the communicator's observer is this object as long as it lives.
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
