// What the ranks of a world do together, to be timed round by round.
#ifndef DTENSOR_BENCH_RANK_WORK_H_
#define DTENSOR_BENCH_RANK_WORK_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/tensor/context.h"

namespace dtensor::bench {

// One rank's part. Collective: all ranks make the same calls.
class RankWork {
 public:
  virtual ~RankWork() = default;
  virtual absl::Status Prepare() = 0;
  // Seconds of one piece of work, the same on all ranks.
  virtual absl::StatusOr<double> TimeRound() = 0;
  virtual absl::Status CheckResults() { return absl::OkStatus(); }
};

using MakeRankWork = std::function<std::unique_ptr<RankWork>(Context&)>;

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_RANK_WORK_H_
