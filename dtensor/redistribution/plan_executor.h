// Carries out redistribution plans on one rank's local tensors: dumb on purpose, all decisions are
// in the plan.
#ifndef DTENSOR_REDISTRIBUTION_PLAN_EXECUTOR_H_
#define DTENSOR_REDISTRIBUTION_PLAN_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

// A plan as one rank carries it out: its boxes, its groups, its labels, worked out once; the
// Context caches it.
class RankRedistributionPlan {
 public:
  RankRedistributionPlan(RedistributionPlan plan, int rank);
  const RedistributionPlan& plan() const { return plan_; }
  // Shapes of this rank's source and result; a rank outside of their mesh has [0].
  const Dims& local_from() const { return local_from_; }
  const Dims& local_to() const { return local_to_; }

  struct Round {
    std::vector<ReceiveBox> receives;
    std::vector<int> group;  // world ranks, ascending; none if this rank takes no part
    std::string axes;        // "dp,tp", or "dp,tp->pp" between meshes
    uint64_t digest = 0;     // of the plan and the round
  };
  // One for each of plan().rounds(); or one, for the local boxes.
  absl::Span<const Round> rounds() const { return rounds_; }
  // The result needs no memory of its own: all that this rank needs is its own source, as it is, or
  // the plan is in place.
  bool keeps_source() const { return keeps_source_; }

 private:
  bool ReceivesItself(int rank) const;
  RedistributionPlan plan_;
  Dims local_from_, local_to_;
  std::vector<Round> rounds_;
  bool keeps_source_ = false;
};

// Who asks for data to move, and of what tensor: for digests and errors.
struct ExchangeCaller {
  ExchangeCaller(const char* op) : op(op) {}        // implicit: no lineage
  ExchangeCaller(absl::string_view op) : op(op) {}  // implicit: no lineage
  ExchangeCaller(absl::string_view op, uint64_t lineage, const Lineage& moved)
      : op(op), lineage(lineage), moved(moved) {}

  absl::string_view op;  // what the user called
  uint64_t lineage = 0;  // of the call: equal on all ranks that take part, or the world fails
  Lineage moved;
  ExchangeCause cause = {};  // of its exchanges
};

// "[8] f32 on ["tp"=2] from [tp] to [], a result of Add": for errors.
std::string DescribeMove(const RedistributionPlan& plan, const Lineage& moved);

// Whether `source` is what the plan moves from this rank. Errors: kInvalidArgument, naming `op`.
absl::Status CheckSource(const RankRedistributionPlan& plan, const Tensor& source,
                         absl::string_view op);

// Collective over the groups of the plan; blocks the host until the peers have called it too. The
// result is `source` if the plan is in place, which requires a source that does not overlap itself.
// Otherwise it is a value of its own, row-major unless plan.is_view(); there, and where it
// keeps_source() that is row-major, it may have borrowed the source's memory (Tensor::Borrow).
// Errors: kInvalidArgument when source's shape or dtype is not what the plan says (on every rank
// that sees it, before anything moves); the world's failure; kResourceExhausted, which fails the
// world.
absl::StatusOr<Tensor> ExecutePlan(const RankRedistributionPlan& plan, const Tensor& source,
                                   Communicator& communicator, const ExchangeCaller& caller);

// A redistribution on its way: begun, so that peers can read from this rank, and finished when its
// result is asked for. Between the two the rank may do anything else; a later exchange of the same
// ranks finishes it first. One that is dropped waits for nobody, and its memory stays until it is
// finished so (Communicator::Drop). All ranks begin, and ask or drop, in one order.
class PendingRedistribution {
 public:
  // As ExecutePlan; waits for nobody.
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> Begin(
      std::shared_ptr<const RankRedistributionPlan> plan, const Tensor& source,
      Communicator& communicator, const ExchangeCaller& caller);
  // As ExecuteCoalesced; waits for nobody. Requires: plans that move something, none in place.
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginCoalesced(
      std::vector<std::shared_ptr<const RankRedistributionPlan>> plans, std::vector<Tensor> sources,
      Communicator& communicator, const ExchangeCaller& caller);
  ~PendingRedistribution();
  PendingRedistribution(const PendingRedistribution&) = delete;
  PendingRedistribution& operator=(const PendingRedistribution&) = delete;

  // The result, of several plans the first, or what went wrong; each time the same.
  absl::StatusOr<Tensor> Wait();
  // After Wait(): the result of plan i, or if that failed memory of its shape, with any values.
  const Tensor& result(size_t i = 0) const { return results_[i]; }
  // Alive until it is finished, though this may be dropped before.
  std::weak_ptr<const void> unfinished() const { return state_; }

 private:
  struct State;
  explicit PendingRedistribution(std::shared_ptr<State> state);
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginFirst(
      std::shared_ptr<State> state);
  absl::Status FinishRounds(State& state);
  std::shared_ptr<State> state_;  // null once it is finished
  std::vector<Tensor> results_;
  absl::Status status_;
};

// Several plans as one: each round of all of them is one exchange, and counts as one collective.
// The bits are those of ExecutePlan() on each. Errors: as its, and kInvalidArgument unless there is
// a source for each plan and all have one CoalescingKey.
absl::StatusOr<std::vector<Tensor>> ExecuteCoalesced(
    absl::Span<const RankRedistributionPlan* const> plans, absl::Span<const Tensor> sources,
    Communicator& communicator, const ExchangeCaller& caller);

// Equal for plans that ExecuteCoalesced may join: mesh, rounds, axes, op and scale as text.
std::string CoalescingKey(const RankRedistributionPlan& plan);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_EXECUTOR_H_
