#include "dtensor/redistribution/chunked_move.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {
namespace {

// An average is a sum that is scaled.
ReduceOp OpOf(const RedistributionPlan& plan) {
  return plan.op() == ReduceOp::kAvg ? ReduceOp::kSum : plan.op();
}

// The exchange of one chunk. It refers to its arguments, and keeps no copies of them.
struct ChunkExchange final : CallDescription, ExchangeBoxes {
  ChunkExchange(const RankChunks& chunks, int chunk, const Tensor& source, const Tensor& result,
                const ExchangeCaller& caller)
      : chunks(chunks),
        chunk(chunk),
        moved(caller.moved),
        part{source, result, chunks.receives(chunk), OpOf(chunks.plan().plan()),
             chunks.plan().plan().scale()} {
    const RedistributionPlan& plan = chunks.plan().plan();
    const RankRedistributionPlan::Round& round = chunks.plan().rounds()[0];
    const int count = chunks.schedule().chunks();
    boxes_digest = MixLineage(round.digest, static_cast<uint64_t>(count) * (count + 1) + chunk);
    collective.kind = plan.rounds()[0].kind;
    collective.axes = round.axes;
    collective.op = caller.op;
    collective.group = round.group;
    collective.digest = MixLineage(boxes_digest, caller.lineage);
    collective.description = this;
    collective.boxes = this;
    collective.counts_as_call = chunk == 0;
    collective.cause = caller.cause;
  }
  ChunkExchange(const ChunkExchange&) = delete;
  ChunkExchange& operator=(const ChunkExchange&) = delete;

  std::string ToString() const override {
    return absl::StrCat("chunk ", chunk + 1, " of ", chunks.schedule().chunks(), " of ",
                        DescribeMove(chunks.plan().plan(), moved));
  }
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    return chunks.schedule().Receives(chunk, rank);
  }
  uint64_t digest() const override { return boxes_digest; }

  const RankChunks& chunks;
  const int chunk;
  const Lineage moved;
  uint64_t boxes_digest = 0;
  Collective collective;
  ExchangePart part;
};

absl::Status CopyOwn(const RankChunks& chunks, const Tensor& source, const Tensor& result) {
  const Tensor* const sources[] = {&source};
  std::vector<kernels::BoxMove> moves;
  for (const ReceiveBox& box : chunks.own()) {
    moves.emplace_back(box, result, sources, ReduceOp::kSum, chunks.plan().plan().scale());
  }
  return moves.empty() ? absl::OkStatus()
                       : kernels::MoveBoxes(source.device(), "Redistribute", moves);
}

absl::Status CheckTensors(const RankChunks& chunks, const Tensor& source, const Tensor& result,
                          absl::string_view op) {
  DT_RETURN_IF_ERROR(CheckSource(chunks.plan(), source, op));
  if (result.defined() && result.shape() == chunks.plan().local_to() &&
      result.dtype() == chunks.plan().plan().result_dtype()) {
    return absl::OkStatus();
  }
  return InvalidArgument({op, ": the memory for the result is not that of ",
                          chunks.plan().plan().ToString(), "; make it ",
                          DimsToString(chunks.plan().local_to())});
}

}  // namespace

RankChunks::RankChunks(std::shared_ptr<const ChunkSchedule> schedule,
                       std::shared_ptr<const RankRedistributionPlan> plan, int rank)
    : schedule_(std::move(schedule)), plan_(std::move(plan)), own_(schedule_->Own(rank)) {
  for (int chunk = 0; chunk < schedule_->chunks(); ++chunk) {
    receives_.push_back(schedule_->Receives(chunk, rank));
  }
  for (int step = 0; step < schedule_->steps(); ++step) {
    rows_.push_back(schedule_->Rows(step, rank));
  }
}

absl::Status MoveInChunks(const RankChunks& chunks, const Tensor& source, const Tensor& result,
                          Communicator& communicator, const ExchangeCaller& caller, MakeRows make) {
  DT_RETURN_IF_ERROR(CheckTensors(chunks, source, result, caller.op));
  if (absl::Status status = CopyOwn(chunks, source, result); !status.ok()) {
    return communicator.Fail(status);
  }
  for (int step = 0; step < chunks.schedule().steps(); ++step) {
    const int chunk = chunks.schedule().ChunkOf(step);
    std::optional<ChunkExchange> exchange;
    if (chunk >= 0) {
      exchange.emplace(chunks, chunk, source, result, caller);
      DT_RETURN_IF_ERROR(
          communicator.Begin(exchange->collective, absl::MakeConstSpan(&exchange->part, 1)));
    }
    absl::Status made = NoThrow([&] { return make(chunks.rows(step)); });
    if (!made.ok()) made = communicator.Fail(made);
    // Finishes also after an error or an exception, as peers may be reading.
    const absl::Status moved =
        exchange.has_value() ? communicator.Finish(exchange->collective) : absl::OkStatus();
    DT_RETURN_IF_ERROR(made);
    DT_RETURN_IF_ERROR(moved);
  }
  return absl::OkStatus();
}

}  // namespace dtensor
