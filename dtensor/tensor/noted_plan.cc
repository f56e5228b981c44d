#include "dtensor/tensor/noted_plan.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/trace/trace_recorder.h"

namespace dtensor {
namespace {

bool TakesPart(const RankRedistributionPlan& plan) {
  return absl::c_any_of(plan.rounds(), [](const auto& round) { return !round.group.empty(); });
}

// Returns the caller with the trace event of its redistribution. No event if nothing moves, or if
// this rank takes no part.
ExchangeCaller Noted(Context& context, const RankRedistributionPlan& first, size_t plans,
                     bool asynchronous, const ExchangeCaller& caller) {
  ExchangeCaller noted = caller;
  TraceRecorder* const tracer = context.tracer();
  if (tracer == nullptr || !tracer->on() || first.plan().moves_nothing()) return noted;
  if (!TakesPart(first)) return noted;
  const RedistributionPlan& plan = first.plan();
  const bool same_mesh = plan.to().mesh() == plan.from().mesh();
  const std::string tensor = absl::StrCat(DimsToString(plan.shape()), " ", ToString(plan.dtype()),
                                          " on ", plan.from().mesh().ToString());
  const std::string from = plan.from().ToString();
  const std::string to = absl::StrCat(plan.to().ToString(), same_mesh ? "" : " on ",
                                      same_mesh ? "" : plan.to().mesh().ToString());
  noted.cause = tracer->OpenMove({.who = caller.op,
                                  .tensor = tensor,
                                  .from = from,
                                  .to = to,
                                  .tensors = static_cast<int>(plans),
                                  .asynchronous = asynchronous});
  return noted;
}

// Peers read these while this rank goes on. If one has borrowed its memory, the lender's next write
// would move it.
absl::Status EndBorrows(Context& context, absl::Span<const Tensor> sources) {
  for (const Tensor& source : sources) {
    if (const absl::Status status = source.EndBorrow(); !status.ok()) {
      return context.communicator().Fail(status);
    }
  }
  return absl::OkStatus();
}

void End(Context& context, const ExchangeCaller& noted) {
  if (context.tracer() != nullptr) context.tracer()->Close(noted.cause.event);
}

}  // namespace

absl::StatusOr<Tensor> RunPlan(Context& context, const RankRedistributionPlan& plan,
                               const Tensor& source, const ExchangeCaller& caller) {
  if (context.tracer() == nullptr) return ExecutePlan(plan, source, context.communicator(), caller);
  const ExchangeCaller noted = Noted(context, plan, 1, /*asynchronous=*/false, caller);
  absl::StatusOr<Tensor> result = ExecutePlan(plan, source, context.communicator(), noted);
  End(context, noted);
  return result;
}

absl::StatusOr<std::vector<Tensor>> RunCoalesced(
    Context& context, absl::Span<const RankRedistributionPlan* const> plans,
    absl::Span<const Tensor> sources, const ExchangeCaller& caller) {
  const ExchangeCaller noted =
      Noted(context, *plans[0], plans.size(), /*asynchronous=*/false, caller);
  auto results = ExecuteCoalesced(plans, sources, context.communicator(), noted);
  End(context, noted);
  return results;
}

absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginPlan(
    Context& context, std::shared_ptr<const RankRedistributionPlan> plan, const Tensor& source,
    const ExchangeCaller& caller) {
  DT_RETURN_IF_ERROR(EndBorrows(context, {&source, 1}));
  const ExchangeCaller noted = Noted(context, *plan, 1, /*asynchronous=*/true, caller);
  return PendingRedistribution::Begin(std::move(plan), source, context.communicator(), noted);
}

absl::StatusOr<std::unique_ptr<PendingRedistribution>> BeginCoalesced(
    Context& context, std::vector<std::shared_ptr<const RankRedistributionPlan>> plans,
    std::vector<Tensor> sources, const ExchangeCaller& caller) {
  DT_RETURN_IF_ERROR(EndBorrows(context, sources));
  const ExchangeCaller noted =
      Noted(context, *plans[0], plans.size(), /*asynchronous=*/true, caller);
  return PendingRedistribution::BeginCoalesced(std::move(plans), std::move(sources),
                                               context.communicator(), noted);
}

ExchangeCaller NotedCaller(Context& context, const RankRedistributionPlan& plan,
                           const ExchangeCaller& caller) {
  return Noted(context, plan, 1, /*asynchronous=*/true, caller);
}

}  // namespace dtensor
