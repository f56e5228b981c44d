#include "dtensor/redistribution/plan_executor.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/box.h"

namespace dtensor {

std::string DescribeMove(const RedistributionPlan& plan, const Lineage& moved) {
  const DeviceMesh &from = plan.from().mesh(), &to = plan.to().mesh();
  std::string text =
      absl::StrCat(DimsToString(plan.shape()), " ", dtensor::ToString(plan.dtype()), " on ",
                   from.ToString(), " from ", plan.from().ToString(), " to ", plan.to().ToString());
  if (to != from) absl::StrAppend(&text, " on ", to.ToString());
  if (plan.result_dtype() != plan.dtype()) {
    absl::StrAppend(&text, " ", dtensor::ToString(plan.result_dtype()));
  }
  const std::string lineage = moved.ToString();
  return lineage.empty() ? text : absl::StrCat(text, ", ", lineage);
}

absl::Status CheckSource(const RankRedistributionPlan& rank_plan, const Tensor& source,
                         absl::string_view op) {
  const RedistributionPlan& plan = rank_plan.plan();
  if (!source.defined()) return InvalidArgument({op, ": the local tensor is undefined"});
  if (source.dtype() == plan.dtype() && source.shape() == rank_plan.local_from())
    return absl::OkStatus();
  return InvalidArgument({op, ": the local tensor is ", DimsToString(source.shape()), " ",
                          ToString(source.dtype()), " where layout ", plan.from().ToString(),
                          " of ", DimsToString(plan.shape()), " ", ToString(plan.dtype()),
                          " gives this rank ", DimsToString(rank_plan.local_from()),
                          "; pass the shard that the layout names"});
}

namespace {

Dims LocalShape(const Layout& layout, absl::Span<const int64_t> shape, int rank) {
  return layout.mesh().Contains(rank) ? layout.LocalShape(shape, rank) : Dims{0};
}

// The ranks of a round, ascending. G of a plan between two meshes runs on the target's mesh.
std::vector<int> GroupOf(const RedistributionPlan& plan, const RedistributionRound& round,
                         int rank) {
  const DeviceMesh& mesh = plan.to().mesh();
  if (round.across) {
    const bool takes_part = mesh.Contains(rank) || plan.from().mesh().Contains(rank);
    return takes_part ? plan.Ranks() : std::vector<int>();
  }
  if (!mesh.Contains(rank)) return {};
  std::vector<int> group = mesh.Group(rank, round.axes);
  std::sort(group.begin(), group.end());
  return group;
}

std::string Label(const RedistributionPlan& plan, const RedistributionRound& round) {
  if (!round.across) return plan.to().mesh().AxisNames(round.axes);
  const auto all = [](const DeviceMesh& mesh) {
    AxisList axes(mesh.num_axes());
    std::iota(axes.begin(), axes.end(), 0);
    return mesh.AxisNames(axes);
  };
  return absl::StrCat(all(plan.from().mesh()), "->", all(plan.to().mesh()));
}

// The result of a rank that has all it needs in its source.
absl::StatusOr<Tensor> LocalResult(const RankRedistributionPlan& rank_plan, const Tensor& source) {
  const RedistributionPlan& plan = rank_plan.plan();
  const std::vector<ReceiveBox>& boxes = rank_plan.rounds()[0].receives;
  if (plan.is_view()) {
    if (rank_plan.local_from() == rank_plan.local_to()) return source.Borrow();
    if (!boxes.empty()) {
      int64_t offset = 0;
      for (int d = 0; d < source.ndim(); ++d) offset += boxes[0].dims[d].src * source.strides()[d];
      return source.View(rank_plan.local_to(), source.strides(), offset).Borrow();
    }
  }
  Device& device = source.device();
  DT_ASSIGN_OR_RETURN(Tensor result,
                      Tensor::Empty(device, plan.result_dtype(), rank_plan.local_to()));
  if (plan.fills_identity())
    DT_RETURN_IF_ERROR(kernels::FillIdentity(device, plan.to().term_op(), result));
  const Tensor* const sources[] = {&source};
  std::vector<kernels::BoxMove> moves;
  moves.reserve(boxes.size());
  for (const ReceiveBox& box : boxes) {
    moves.emplace_back(box, result, sources, ReduceOp::kSum, plan.scale());
  }
  DT_RETURN_IF_ERROR(kernels::MoveBoxes(device, "Redistribute", moves));
  return result;
}

absl::StatusOr<Tensor> EmptyResult(const RankRedistributionPlan& rank_plan, const Tensor& source) {
  const RedistributionPlan& plan = rank_plan.plan();
  if (plan.in_place()) {
    // If there are no elements, the shapes may differ in which dimensions are 0.
    const Dims& shape = rank_plan.local_to();
    return source.shape() == shape ? source : source.View(shape, RowMajorStrides(shape), 0);
  }
  // Only if it is contiguous: other ranks receive their results contiguously, kernels may add in an
  // order that depends on strides, and then replicas would have different bits.
  if (rank_plan.keeps_source() && source.is_contiguous()) return source.Borrow();
  DT_ASSIGN_OR_RETURN(Tensor result,
                      Tensor::Empty(source.device(), plan.result_dtype(), rank_plan.local_to()));
  if (plan.fills_identity()) {
    DT_RETURN_IF_ERROR(kernels::FillIdentity(source.device(), plan.to().term_op(), result));
  }
  return result;
}

// Sets `result` to the tensor that the rounds fill or, without rounds, to the final result. Peers
// may be waiting for this rank already, so an error fails the world.
absl::Status MakeResult(const RankRedistributionPlan& plan, const Tensor& source,
                        Communicator& communicator, Tensor& result) {
  absl::StatusOr<Tensor> made =
      plan.plan().rounds().empty() ? LocalResult(plan, source) : EmptyResult(plan, source);
  if (!made.ok()) return communicator.Fail(made.status());
  result = *std::move(made);
  return absl::OkStatus();
}

// Round s of all plans as one exchange. It refers to the plans and to `caller`, without copies.
struct RoundExchange final : CallDescription, ExchangeBoxes {
  RoundExchange(int s, absl::Span<const RankRedistributionPlan* const> plans,
                absl::Span<const Tensor> sources, absl::Span<const Tensor> results,
                const ExchangeCaller& caller)
      : s(s), plans(plans.begin(), plans.end()), moved(caller.moved) {
    Digest all;
    const RankRedistributionPlan::Round& first = plans[0]->rounds()[s];
    const RedistributionRound& round = plans[0]->plan().rounds()[s];
    collective.native = collective.sums_in_any_order = true;
    for (size_t i = 0; i < plans.size(); ++i) {
      const RedistributionPlan& plan = plans[i]->plan();
      collective.native &= plan.rounds()[s].native;
      collective.sums_in_any_order &= plan.rounds()[s].sums_in_any_order;
      const std::vector<ReceiveBox>& receives = plans[i]->rounds()[s].receives;
      if (round.from_source) {  // X writes each element of the result once
        const ReduceOp op = plan.op() == ReduceOp::kAvg ? ReduceOp::kSum : plan.op();
        parts.push_back({sources[i], results[i], receives, op, plan.scale()});
      } else {
        parts.push_back({results[i], results[i], receives});
      }
      all.Add(static_cast<int64_t>(plans[i]->rounds()[s].digest));
    }
    boxes_digest = all.value();
    collective.digest = MixLineage(boxes_digest, caller.lineage);
    collective.kind = round.kind;
    collective.axes = first.axes;
    collective.op = caller.op;
    collective.group = first.group;
    collective.counts_as_call = !round.continues;
    collective.cause = caller.cause;
    collective.description = this;
    collective.boxes = this;
  }
  RoundExchange(const RoundExchange&) = delete;
  RoundExchange& operator=(const RoundExchange&) = delete;
  bool takes_part() const { return !collective.group.empty(); }

  std::string ToString() const override {
    const std::string first = DescribeMove(plans[0]->plan(), moved);
    return parts.size() == 1 ? first : absl::StrCat(parts.size(), " tensors, the first ", first);
  }

  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    return plans[part]->plan().Receives(s, rank);
  }
  uint64_t digest() const override { return boxes_digest; }

  const int s;
  const absl::InlinedVector<const RankRedistributionPlan*, 1> plans;
  const Lineage moved;
  uint64_t boxes_digest = 0;
  Collective collective;
  absl::InlinedVector<ExchangePart, 1> parts;
};

// Runs all rounds. Requires: one source and one result for each plan; plans with one CoalescingKey.
absl::Status RunRounds(absl::Span<const RankRedistributionPlan* const> plans,
                       absl::Span<const Tensor> sources, absl::Span<Tensor> results,
                       Communicator& communicator, const ExchangeCaller& caller) {
  for (size_t i = 0; i < plans.size(); ++i)
    DT_RETURN_IF_ERROR(CheckSource(*plans[i], sources[i], caller.op));
  const int rounds = static_cast<int>(plans[0]->plan().rounds().size());
  for (size_t i = 0; i < plans.size(); ++i) {
    DT_RETURN_IF_ERROR(MakeResult(*plans[i], sources[i], communicator, results[i]));
  }
  for (int s = 0; s < rounds; ++s) {
    const RoundExchange round(s, plans, sources, results, caller);
    if (!round.takes_part()) continue;
    DT_RETURN_IF_ERROR(communicator.Exchange(round.collective, round.parts));
  }
  return absl::OkStatus();
}

}  // namespace

RankRedistributionPlan::RankRedistributionPlan(RedistributionPlan plan, int rank)
    : plan_(std::move(plan)),
      local_from_(LocalShape(plan_.from(), plan_.shape(), rank)),
      local_to_(LocalShape(plan_.to(), plan_.shape(), rank)) {
  if (plan_.moves_nothing()) {
    rounds_.push_back({plan_.Receives(0, rank), {rank}, "", plan_.digest()});
    return;
  }
  for (int s = 0; s < static_cast<int>(plan_.rounds().size()); ++s) {
    const RedistributionRound& round = plan_.rounds()[s];
    rounds_.push_back({plan_.Receives(s, rank), GroupOf(plan_, round, rank), Label(plan_, round),
                       plan_.digest() + s});
  }
  keeps_source_ = plan_.in_place() || ReceivesItself(rank);
}

bool RankRedistributionPlan::ReceivesItself(int rank) const {
  if (rounds_.size() != 1 || rounds_[0].receives.size() != 1 || local_from_ != local_to_)
    return false;
  if (plan_.result_dtype() != plan_.dtype() || plan_.fills_identity() || plan_.scale() != 1) {
    return false;
  }
  const ReceiveBox& box = rounds_[0].receives[0];
  if (box.peers.size() != 1 || box.peers[0] != rank) return false;
  for (size_t d = 0; d < box.dims.size(); ++d) {
    if (box.dims[d] != MatchedRun{.length = local_to_[d]}) return false;
  }
  return true;
}

absl::StatusOr<Tensor> ExecutePlan(const RankRedistributionPlan& plan, const Tensor& source,
                                   Communicator& communicator, const ExchangeCaller& caller) {
  Tensor result;
  if (plan.plan().rounds().empty()) {
    DT_RETURN_IF_ERROR(CheckSource(plan, source, caller.op));
    DT_RETURN_IF_ERROR(MakeResult(plan, source, communicator, result));
    return result;
  }
  const RankRedistributionPlan* const plans[] = {&plan};
  DT_RETURN_IF_ERROR(RunRounds(plans, absl::MakeConstSpan(&source, 1), absl::MakeSpan(&result, 1),
                               communicator, caller));
  return result;
}

namespace {

// Checks that the plans can be one collective, and that there is a source for each.
absl::Status CheckCoalescing(absl::Span<const RankRedistributionPlan* const> plans, size_t sources,
                             const ExchangeCaller& caller) {
  if (plans.size() != sources) {
    return InvalidArgument({caller.op, ": ", absl::StrCat(plans.size()), " plans for ",
                            absl::StrCat(sources), " tensors; give each tensor its plan"});
  }
  if (plans.empty()) return absl::OkStatus();
  const std::string key = CoalescingKey(*plans[0]);
  for (const RankRedistributionPlan* plan : plans) {
    if (CoalescingKey(*plan) == key) continue;
    return InvalidArgument(
        {caller.op, ": these cannot be one collective: ", plans[0]->plan().ToString(), " and ",
         plan->plan().ToString(), "; coalesce plans with equal CoalescingKey"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> ExecuteCoalesced(
    absl::Span<const RankRedistributionPlan* const> plans, absl::Span<const Tensor> sources,
    Communicator& communicator, const ExchangeCaller& caller) {
  DT_RETURN_IF_ERROR(CheckCoalescing(plans, sources.size(), caller));
  std::vector<Tensor> results(plans.size());
  if (plans.empty()) return results;
  DT_RETURN_IF_ERROR(RunRounds(plans, sources, absl::MakeSpan(results), communicator, caller));
  return results;
}

struct PendingRedistribution::State {
  using Plans = std::vector<std::shared_ptr<const RankRedistributionPlan>>;
  State(Plans kept_in, std::vector<Tensor> sources, Communicator& communicator,
        const ExchangeCaller& caller)
      : kept(std::move(kept_in)),
        communicator(&communicator),
        op(caller.op),
        caller(caller),
        sources(std::move(sources)),
        results(kept.size()) {
    this->caller.op = op;
    for (const auto& plan : kept) plans.push_back(plan.get());
  }

  Plans kept;
  std::vector<const RankRedistributionPlan*> plans;
  Communicator* communicator;
  std::string op;
  ExchangeCaller caller;  // its `op` refers to the member above
  std::vector<Tensor> sources, results;
  std::optional<RoundExchange> first;  // begun and not finished
};

PendingRedistribution::PendingRedistribution(std::shared_ptr<State> state)
    : state_(std::move(state)) {}

PendingRedistribution::~PendingRedistribution() {
  if (state_ == nullptr || !state_->first.has_value() || !state_->first->takes_part()) return;
  Communicator& communicator = *state_->communicator;
  const Collective& begun = state_->first->collective;
  communicator.Drop(begun, std::move(state_));
}

absl::StatusOr<std::unique_ptr<PendingRedistribution>> PendingRedistribution::Begin(
    std::shared_ptr<const RankRedistributionPlan> plan, const Tensor& source,
    Communicator& communicator, const ExchangeCaller& caller) {
  State::Plans plans = {std::move(plan)};
  return BeginFirst(
      std::make_shared<State>(std::move(plans), std::vector<Tensor>{source}, communicator, caller));
}

absl::StatusOr<std::unique_ptr<PendingRedistribution>> PendingRedistribution::BeginCoalesced(
    std::vector<std::shared_ptr<const RankRedistributionPlan>> plans, std::vector<Tensor> sources,
    Communicator& communicator, const ExchangeCaller& caller) {
  auto state = std::make_shared<State>(std::move(plans), std::move(sources), communicator, caller);
  DT_RETURN_IF_ERROR(CheckCoalescing(state->plans, state->sources.size(), caller));
  return BeginFirst(std::move(state));
}

absl::StatusOr<std::unique_ptr<PendingRedistribution>> PendingRedistribution::BeginFirst(
    std::shared_ptr<State> state) {
  Communicator& communicator = *state->communicator;
  bool moves = false;
  for (size_t i = 0; i < state->plans.size(); ++i) {
    const RankRedistributionPlan& plan = *state->plans[i];
    DT_RETURN_IF_ERROR(CheckSource(plan, state->sources[i], state->op));
    moves |= !plan.plan().moves_nothing();
    auto result = plan.plan().moves_nothing() ? LocalResult(plan, state->sources[i])
                                              : EmptyResult(plan, state->sources[i]);
    if (!result.ok()) return communicator.Fail(result.status());
    state->results[i] = *std::move(result);
  }
  // Allocated before the exchange begins: if this allocation failed afterwards, memory that peers
  // may read would be freed.
  auto pending = std::unique_ptr<PendingRedistribution>(new PendingRedistribution(nullptr));
  if (moves) {
    state->first.emplace(0, state->plans, state->sources, state->results, state->caller);
    RoundExchange& first = *state->first;
    if (first.takes_part()) {
      DT_RETURN_IF_ERROR(communicator.Begin(first.collective, first.parts));
    }
  }
  pending->state_ = std::move(state);
  return pending;
}

absl::StatusOr<Tensor> PendingRedistribution::Wait() {
  if (state_ == nullptr) return status_.ok() ? absl::StatusOr<Tensor>(results_[0]) : status_;
  results_ = state_->results;  // first: if this throws, state_ still exists and can be dropped
  const std::shared_ptr<State> state = std::move(state_);
  if (!state->first.has_value()) return results_[0];
  status_ = NoThrow([&] { return FinishRounds(*state); });
  if (!status_.ok()) return status_;
  return results_[0];
}

Delivery PendingRedistribution::delivery() const {
  if (state_ == nullptr || !state_->first.has_value()) return Delivery::kDone;
  const auto& rounds = state_->plans[0]->rounds();
  const bool has_more = std::any_of(rounds.begin() + 1, rounds.end(),
                                    [](const auto& round) { return !round.group.empty(); });
  if (has_more) return Delivery::kInFinish;
  const RoundExchange& first = *state_->first;
  if (!first.takes_part()) return Delivery::kDone;
  return state_->communicator->delivery(first.collective);
}

absl::Status PendingRedistribution::FinishRounds(State& state) {
  Communicator& communicator = *state.communicator;
  if (state.first->takes_part()) {
    DT_RETURN_IF_ERROR(communicator.Finish(state.first->collective));
  }
  const int rounds = static_cast<int>(state.plans[0]->plan().rounds().size());
  for (int s = 1; s < rounds; ++s) {
    const RoundExchange round(s, state.plans, state.sources, results_, state.caller);
    if (!round.takes_part()) continue;
    DT_RETURN_IF_ERROR(communicator.Exchange(round.collective, round.parts));
  }
  return absl::OkStatus();
}

std::string CoalescingKey(const RankRedistributionPlan& rank_plan) {
  const RedistributionPlan& plan = rank_plan.plan();
  std::string key = absl::StrCat(plan.from().mesh().ToString(), plan.to().mesh().ToString(), " ",
                                 ToString(plan.op()), " ", plan.scale(), " ",
                                 ToString(plan.dtype()), ToString(plan.result_dtype()));
  for (const RedistributionRound& round : plan.rounds()) {
    absl::StrAppend(&key, "; ", ToString(round.kind), "(", plan.to().mesh().AxisNames(round.axes),
                    ")", round.across ? " across" : "", round.from_source ? "" : " from results",
                    round.pivot ? " pivot" : "", round.reduces ? " reduces" : "",
                    round.continues ? " continues" : "");
  }
  return key;
}

}  // namespace dtensor
