// Carries out redistribution plans on one rank's local tensors. It decides nothing: all decisions
// are in the plan.
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

// One rank's part of a plan: its boxes, groups and labels, computed once. The Context caches it.
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
  // One for each of plan().rounds(); if there are none, one for the local boxes.
  absl::Span<const Round> rounds() const { return rounds_; }
  // Whether the result needs no memory of its own, because this rank's result is its own unchanged
  // source, or because the plan is in place.
  bool keeps_source() const { return keeps_source_; }

 private:
  bool ReceivesItself(int rank) const;
  RedistributionPlan plan_;
  Dims local_from_, local_to_;
  std::vector<Round> rounds_;
  bool keeps_source_ = false;
};

// Which call moves data, and of which tensor: for digests and errors.
struct ExchangeCaller {
  ExchangeCaller(const char* op) : op(op) {}        // implicit: no lineage
  ExchangeCaller(absl::string_view op) : op(op) {}  // implicit: no lineage
  ExchangeCaller(absl::string_view op, uint64_t lineage, const Lineage& moved)
      : op(op), lineage(lineage), moved(moved) {}

  absl::string_view op;  // what the user called
  uint64_t lineage = 0;  // of the call: equal on all ranks that take part, or the world fails
  Lineage moved;
  ExchangeCause cause = {};  // to be passed to its exchanges
};

// "[8] f32 on ["tp"=2] from [tp] to [], a result of Add": for errors.
std::string DescribeMove(const RedistributionPlan& plan, const Lineage& moved);

// Checks that `source` has the shape and type of this rank's source. Errors: kInvalidArgument,
// naming `op`.
absl::Status CheckSource(const RankRedistributionPlan& plan, const Tensor& source,
                         absl::string_view op);

// Runs the plan. Collective over its groups; blocks the host until the peers have called it too. If
// the plan is in place, the result is `source`; then no two elements of the source may share
// memory. Otherwise the result is a value of its own, row-major unless plan.is_view(). It may have
// borrowed the source's memory (Tensor::Borrow) if plan.is_view(), or if keeps_source() and the
// source is row-major.
// Errors: kInvalidArgument if source's shape or dtype is not the plan's (on every rank that sees
// it, before anything moves); the world's failure; kResourceExhausted, which fails the world.
absl::StatusOr<Tensor> ExecutePlan(const RankRedistributionPlan& plan, const Tensor& source,
                                   Communicator& communicator, const ExchangeCaller& caller);

// A redistribution in flight. Begin() lets peers read from this rank; Wait() finishes it. Between
// the two the rank may do anything else; a later exchange of the same ranks finishes it first. If
// it is dropped, nothing blocks, and its memory is kept until it is finished in that way
// (Communicator::Drop). All ranks must begin, and wait for or drop, their redistributions in the
// same order.
class PendingRedistribution {
 public:
  // As ExecutePlan, but does not wait for peers.
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> Begin(
      std::shared_ptr<const RankRedistributionPlan> plan, const Tensor& source,
      Communicator& communicator, const ExchangeCaller& caller);
  // As ExecuteCoalesced, but does not wait for peers. Requires: plans that move something, none of
  // them in place.
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginCoalesced(
      std::vector<std::shared_ptr<const RankRedistributionPlan>> plans, std::vector<Tensor> sources,
      Communicator& communicator, const ExchangeCaller& caller);
  ~PendingRedistribution();
  PendingRedistribution(const PendingRedistribution&) = delete;
  PendingRedistribution& operator=(const PendingRedistribution&) = delete;

  // Returns the result (of several plans, the first), or the error; each call returns the same.
  absl::StatusOr<Tensor> Wait();
  // When the others get what this rank brings (Communicator::delivery).
  Delivery delivery() const;
  // After Wait(): the result of plan i; if Wait() failed, memory of its shape, with unspecified
  // values.
  const Tensor& result(size_t i = 0) const { return results_[i]; }
  // Expires when it is finished, even if this object is dropped before.
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

// Runs several plans together: each round is one exchange for all of them, and counts as one
// collective. The results have the same bits as from ExecutePlan() on each. Errors: as ExecutePlan;
// also kInvalidArgument unless there is one source for each plan and all plans have the same
// CoalescingKey.
absl::StatusOr<std::vector<Tensor>> ExecuteCoalesced(
    absl::Span<const RankRedistributionPlan* const> plans, absl::Span<const Tensor> sources,
    Communicator& communicator, const ExchangeCaller& caller);

// A text that is equal for plans that ExecuteCoalesced may join. It contains meshes, rounds, axes,
// types, op and scale.
std::string CoalescingKey(const RankRedistributionPlan& plan);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_PLAN_EXECUTOR_H_
