// One rank's part in measuring a row of //bench:redistribute, on threads or processes.
#ifndef DTENSOR_BENCH_ROW_RUNNER_H_
#define DTENSOR_BENCH_ROW_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/bench/rank_work.h"
#include "dtensor/bench/redistribute_grid.h"
#include "dtensor/tensor/context.h"

namespace dtensor::bench {

// A row, and how it gets there: through placements of which the last are row.to.
struct RowTask {
  RowTask(const Row& row, std::vector<Placements> path);

  const Row row;
  const std::vector<Placements> path;
  std::vector<std::byte> source, expected;  // of the row's type: the global tensor before and after
};

constexpr int64_t kCopyBytes = int64_t{64} << 20;  // of each rank

// Prepare makes sources, counts bytes, touches all memory, and finds how many calls a clock can
// time. TimeRound's seconds are of one call. CheckResults: kInternal for a result that is not the
// expected one, bit for bit.
class RowRunner : public RankWork {
 public:
  // Bytes that all ranks receive from others, counted; the least there can be; what is read and
  // written on all ranks. After Prepare.
  int64_t moved() const { return moved_; }
  int64_t bound() const { return bound_; }
  int64_t touched() const { return touched_; }
  // Small enough to lie in the caches: there is no limit then.
  bool cached() const { return cached_; }
  // How many rounds fill so many seconds.
  int RoundsFor(double seconds) const;

  // Seconds of a copy of kCopyBytes on all ranks at once. Collective.
  virtual absl::StatusOr<double> TimeCopy() = 0;

 protected:
  int64_t moved_ = 0, bound_ = 0, touched_ = 0;
  bool cached_ = false;
  int calls_ = 1;            // of a round
  double call_seconds_ = 1;  // about
};

// The context and the task outlive it.
std::unique_ptr<RowRunner> MakeRowRunner(Context& context, const RowTask& task);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_ROW_RUNNER_H_
