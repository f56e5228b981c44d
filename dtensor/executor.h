// Carries out redistribution plans on one rank's local tensors: dumb on purpose, all decisions are
// in the plan.
#ifndef DTENSOR_EXECUTOR_H_
#define DTENSOR_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/redistribution_plan.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// A plan as one rank carries it out: its boxes, its groups, its labels, worked out once; the
// Context caches it (plan_cache.h).
class RankPlan {
 public:
  RankPlan(RedistributionPlan plan, int rank);
  const RedistributionPlan& plan() const { return plan_; }
  // Shapes of this rank's source and result; a rank outside of their mesh has [0].
  const Dims& local_from() const { return local_from_; }
  const Dims& local_to() const { return local_to_; }

  struct Step {
    std::vector<Transfer> receives;
    std::vector<int> group;  // world ranks, ascending; none if this rank takes no part
    std::string axes;        // "dp,tp", or "dp,tp->pp" between meshes
    uint64_t digest = 0;     // of the plan and the step
  };
  // One for each of plan().steps(); or one, for the local boxes.
  absl::Span<const Step> steps() const { return steps_; }
  // The result has the source's place in memory: all that this rank needs is its own source, as it
  // is, or the plan is in place.
  bool keeps_source() const { return keeps_source_; }

 private:
  bool ReceivesItself(int rank) const;
  RedistributionPlan plan_;
  Dims local_from_, local_to_;
  std::vector<Step> steps_;
  bool keeps_source_ = false;
};

// Collective over the groups of the plan; blocks the host until the peers have called it too. The
// result may share storage with `source` if plan.is_view(), and does if plan.keeps_source(). `op`
// is what the user called, for errors. Errors: kInvalidArgument when source's shape or dtype is not
// what the plan says (on every rank that sees it, before anything moves); the world's failure;
// kResourceExhausted, which fails the world.
absl::StatusOr<Tensor> Execute(const RankPlan& plan, const Tensor& source,
                               Communicator& communicator, absl::string_view op);

// A redistribution on its way: begun, so that peers can read from this rank, and finished when its
// result is asked for, or it is dropped. Between the two the rank may do anything else; a later
// exchange of the same ranks finishes it first. All ranks begin, and ask or drop, in one order.
class PendingRedistribution {
 public:
  // As Execute; waits for nobody.
  static absl::StatusOr<std::unique_ptr<PendingRedistribution>> Begin(
      std::shared_ptr<const RankPlan> plan, const Tensor& source, Communicator& communicator,
      absl::string_view op);
  ~PendingRedistribution();
  PendingRedistribution(const PendingRedistribution&) = delete;
  PendingRedistribution& operator=(const PendingRedistribution&) = delete;

  // The result, or what went wrong; each time the same.
  absl::StatusOr<Tensor> Wait();

 private:
  struct State;
  explicit PendingRedistribution(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;  // null once it is finished
  Tensor result_;
  absl::Status status_;
};

// Several plans as one: each round of all of them is one exchange, and counts as one collective.
// The bits are those of Execute() on each. Errors: kInvalidArgument unless there is a source for
// each plan and all have one CoalescingKey; as Execute.
absl::StatusOr<std::vector<Tensor>> ExecuteCoalesced(absl::Span<const RankPlan* const> plans,
                                                     absl::Span<const Tensor> sources,
                                                     Communicator& communicator,
                                                     absl::string_view op);

// Equal for plans that ExecuteCoalesced may join: mesh, steps, axes, op and scale as text.
std::string CoalescingKey(const RankPlan& plan);

}  // namespace dtensor

#endif  // DTENSOR_EXECUTOR_H_
