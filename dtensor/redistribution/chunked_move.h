// Carries out chunk schedules on one rank's local tensors: dumb on purpose, all decisions are in
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

// A schedule as one rank carries it out: its boxes and rows, worked out once.
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

// Called in each step, between the two halves of its exchange, with the rows that are to be made.
// An error is this rank's alone: it fails the world.
using MakeRows = absl::FunctionRef<absl::Status(absl::Span<const RowRange> rows)>;

// Moves `source` to `result`, tensors of the shapes that the plan gives this rank, which share no
// memory. Of an all-gather, `make` finds its rows in `result`; of a reduce-scatter it leaves them
// in `source`. Collective over the groups of the plan: the exchanges are halves
// (Communicator::Begin, Finish), so what `make` launches runs beside what moves. Peers read from
// `source` until it returns. Counted as one collective. Errors: kInvalidArgument for tensors that
// are not what the plan says, before anything moves; the world's failure, which is also what `make`
// returned.
absl::Status MoveInChunks(const RankChunks& chunks, const Tensor& source, const Tensor& result,
                          Communicator& communicator, const ExchangeCaller& caller, MakeRows make);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_CHUNKED_MOVE_H_
