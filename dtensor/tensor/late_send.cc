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

absl::Status LateSend::MakeAll() { return RunPlan(context_, *plan_, source_, caller_).status(); }

absl::StatusOr<Tensor> RunOrSendLater(const TensorImpl& impl, const Tensor& source,
                                      const Spec* target,
                                      std::shared_ptr<const RankRedistributionPlan> plan,
                                      const ExchangeCaller& caller) {
  Context& context = *impl.context;
  const bool only_sends = impl.spec->on_mesh && !target->on_mesh && !plan->plan().moves_nothing();
  if (!context.defers_sends() || !only_sends) return RunPlan(context, *plan, source, caller);
  auto values = Tensor::Empty(context.device(), target->dtype, target->local_shape);
  if (!values.ok()) return context.communicator().Fail(values.status());
  auto send = std::make_shared<LateSend>(context, std::move(plan), source, *values, caller);
  context.AddLateRead(AliasRoot(impl), send);
  context.AddLateSend(std::move(send));
  return values;
}

}  // namespace dtensor
