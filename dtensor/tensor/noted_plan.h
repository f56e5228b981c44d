// Runs redistribution plans and notes them in the Context's trace, if there is one. All code in
// this folder that redistributes tensors calls these functions, except OpCall::GatherShards (op.h):
// it counts as the operator's own exchange. TraceReason sets the reason that the trace gives.
#ifndef DTENSOR_TENSOR_NOTED_PLAN_H_
#define DTENSOR_TENSOR_NOTED_PLAN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// As ExecutePlan, ExecuteCoalesced and PendingRedistribution's Begin and BeginCoalesced, with the
// Context's communicator. BeginPlan and BeginCoalesced end the sources' borrows
// (Tensor::EndBorrow).
absl::StatusOr<Tensor> RunPlan(Context& context, const RankRedistributionPlan& plan,
                               const Tensor& source, const ExchangeCaller& caller);
absl::StatusOr<std::vector<Tensor>> RunCoalesced(
    Context& context, absl::Span<const RankRedistributionPlan* const> plans,
    absl::Span<const Tensor> sources, const ExchangeCaller& caller);
absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginPlan(
    Context& context, std::shared_ptr<const RankRedistributionPlan> plan, const Tensor& source,
    const ExchangeCaller& caller);
absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginCoalesced(
    Context& context, std::vector<std::shared_ptr<const RankRedistributionPlan>> plans,
    std::vector<Tensor> sources, const ExchangeCaller& caller);

// Notes a redistribution that begins now and is carried out by MoveInChunks(); returns the caller
// to give to that.
ExchangeCaller NotedCaller(Context& context, const RankRedistributionPlan& plan,
                           const ExchangeCaller& caller);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_NOTED_PLAN_H_
