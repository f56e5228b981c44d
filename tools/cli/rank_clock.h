// Times what all ranks do at once: from the first rank's start to the last rank's end.
#ifndef DTENSOR_TOOLS_CLI_RANK_CLOCK_H_
#define DTENSOR_TOOLS_CLI_RANK_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"

namespace dtensor::cli {

class RankClock {
 public:
  explicit RankClock(int ranks) : stamps_(ranks) {}

  // Collective: every rank's work starts after a barrier. Returns what the work returns.
  template <typename Work>
  absl::Status Time(Context& context, const Work& work) {
    DT_RETURN_IF_ERROR(context.communicator().Barrier("time"));
    Stamp& mine = stamps_[context.rank()];
    mine.begin = std::chrono::steady_clock::now();
    DT_RETURN_IF_ERROR(work());
    DT_RETURN_IF_ERROR(context.device().Synchronize());
    mine.end = std::chrono::steady_clock::now();
    return context.communicator().Barrier("time");
  }

  // Of the last Time(). Any rank may ask, until the next one begins.
  double seconds() const {
    auto begin = stamps_[0].begin, end = stamps_[0].end;
    for (const Stamp& stamp : stamps_) {
      begin = std::min(begin, stamp.begin);
      end = std::max(end, stamp.end);
    }
    return std::chrono::duration<double>(end - begin).count();
  }

 private:
  struct alignas(64) Stamp {
    std::chrono::steady_clock::time_point begin, end;
  };
  std::vector<Stamp> stamps_;
};

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RANK_CLOCK_H_
