#include "dtensor/tensor/late_send.h"

#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/noted_plan.h"

namespace dtensor {

LateSend::LateSend(Context& context, std::shared_ptr<const RankRedistributionPlan> plan,
                   const Tensor& source, Tensor values, const ExchangeCaller& caller)
    : LateValues(context, std::move(values)),
      plan_(std::move(plan)),
      source_(source),
      op_(caller.op),
      caller_(caller) {
  caller_.op = op_;
}

bool LateSend::IsBetween(const Spec& from, const Spec& to) const {
  return plan_->plan().from().mesh() == from.mesh() && plan_->plan().to().mesh() == to.mesh();
}

void LateSend::Forget() { source_ = Tensor(); }

absl::Status LateSend::MakeAll() { return RunOrSend(context_, plan_, source_, caller_).status(); }

namespace {

bool OnlySends(const Context& context, const RedistributionPlan& plan) {
  return plan.from().mesh().Contains(context.rank()) &&
         !plan.to().mesh().Contains(context.rank()) && !plan.moves_nothing();
}

// The result of a plan on a rank that is not on its target's mesh.
absl::StatusOr<Tensor> NoElements(Context& context, const RankRedistributionPlan& plan) {
  auto none = Tensor::Empty(context.device(), plan.plan().result_dtype(), plan.local_to());
  if (!none.ok()) return context.communicator().Fail(none.status());
  return none;
}

}  // namespace

absl::StatusOr<Tensor> RunOrSend(Context& context,
                                 std::shared_ptr<const RankRedistributionPlan> plan,
                                 const Tensor& source, const ExchangeCaller& caller) {
  if (!OnlySends(context, plan->plan())) return RunPlan(context, *plan, source, caller);
  DT_ASSIGN_OR_RETURN(Tensor none, NoElements(context, *plan));
  DT_ASSIGN_OR_RETURN(const std::shared_ptr<PendingRedistribution> pending,
                      BeginPlan(context, std::move(plan), source, caller));
  if (pending->delivery() != Delivery::kDone) return pending->Wait();
  context.AddRead(source, pending);
  return none;
}

absl::StatusOr<Tensor> RunOrSendLater(const TensorImpl& impl, const Tensor& source,
                                      std::shared_ptr<const RankRedistributionPlan> plan,
                                      const ExchangeCaller& caller) {
  Context& context = *impl.context;
  if (!context.defers_sends() || !OnlySends(context, plan->plan())) {
    return RunOrSend(context, std::move(plan), source, caller);
  }
  DT_ASSIGN_OR_RETURN(Tensor none, NoElements(context, *plan));
  auto send = std::make_shared<LateSend>(context, std::move(plan), source, none, caller);
  context.AddLateRead(AliasRoot(impl), send);
  context.AddLateSend(std::move(send));
  return none;
}

}  // namespace dtensor
