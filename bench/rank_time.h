// Times what all ranks do at once, be they threads or processes of one host.
#ifndef DTENSOR_BENCH_RANK_TIME_H_
#define DTENSOR_BENCH_RANK_TIME_H_

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor::bench {

// Seconds from the first rank's start of `work` to the last one's end, the same on all ranks. Each
// starts after a barrier. Collective. Errors: of the work, which returns a status; the world's
// failure.
template <typename Work>
absl::StatusOr<double> TimeOnAllRanks(Context& context, const Work& work) {
  using Clock = std::chrono::steady_clock;  // one for all processes of a host
  struct Stamp {
    Clock::duration begin, end;
  };
  DT_RETURN_IF_ERROR(context.communicator().Barrier("time"));
  Stamp mine;
  mine.begin = Clock::now().time_since_epoch();
  DT_RETURN_IF_ERROR(work());
  DT_RETURN_IF_ERROR(context.device().Synchronize());
  mine.end = Clock::now().time_since_epoch();
  DT_ASSIGN_OR_RETURN(const std::vector<Stamp> all, GatherValues(context, mine));
  Stamp whole = mine;
  for (const Stamp& stamp : all) {
    whole.begin = std::min(whole.begin, stamp.begin);
    whole.end = std::max(whole.end, stamp.end);
  }
  return std::chrono::duration<double>(whole.end - whole.begin).count();
}

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_RANK_TIME_H_
