// Carries out chunk schedules on one rank's local tensors. It decides nothing: all decisions are in
// the schedule.
#ifndef DTENSOR_REDISTRIBUTION_CHUNKED_MOVE_H_
#define DTENSOR_REDISTRIBUTION_CHUNKED_MOVE_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/redistribution/chunk_schedule.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

// One rank's part of a schedule: its boxes and rows, computed once.
class RankChunks {
 public:
  // Requires: `schedule` is of plan->plan(); `rank` is on its mesh.
  RankChunks(std::shared_ptr<const ChunkSchedule> schedule,
             std::shared_ptr<const RankRedistributionPlan> plan, int rank);

  const ChunkSchedule& schedule() const { return *schedule_; }
  const RankRedistributionPlan& plan() const { return *plan_; }
  const std::vector<ReceiveBox>& own() const { return own_; }
  const std::vector<ReceiveBox>& receives(int chunk) const { return receives_[chunk]; }
  absl::Span<const RowRange> rows(int step) const { return rows_[step]; }

 private:
  const std::shared_ptr<const ChunkSchedule> schedule_;
  const std::shared_ptr<const RankRedistributionPlan> plan_;
  std::vector<ReceiveBox> own_;
  std::vector<std::vector<ReceiveBox>> receives_;  // by chunk
  std::vector<std::vector<RowRange>> rows_;        // by step
};

// Called in each step, between the two halves of its exchange, to compute these rows. An error that
// it returns may be this rank's alone, so it fails the world.
using MakeRows = absl::FunctionRef<absl::Status(absl::Span<const RowRange> rows)>;

// Redistributes `source` into `result`. Both have the shapes that the plan gives this rank, and
// share no memory. In an all-gather `make` reads its rows from `result`; in a reduce-scatter it
// writes them to `source`. Each exchange is begun before `make` and finished after it
// (Communicator::Begin, Finish), so what `make` launches overlaps with communication. Peers read
// from `source` until this call returns. Collective over the groups of the plan; counted as one
// collective.
// Errors: kInvalidArgument, before anything moves, for tensors that do not have the plan's shapes
// and types; the world's failure, which may be the error that `make` returned.
absl::Status MoveInChunks(const RankChunks& chunks, const Tensor& source, const Tensor& result,
                          Communicator& communicator, const ExchangeCaller& caller, MakeRows make);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_CHUNKED_MOVE_H_
