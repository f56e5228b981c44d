#include "dtensor/ops/expert_tokens.h"

#include <utility>
#include <vector>

#include "dtensor/ops/expert_routing.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

// The exchanges of a call.
enum ExchangeNumber { kThere, kBack, kThereInBackward, kBackInBackward };

// [..., n] as [rows, n].
absl::StatusOr<Tensor> AsRows(Device& device, const Tensor& x) {
  const int64_t shape[] = {NumElements(absl::MakeConstSpan(x.shape()).first(x.ndim() - 1)),
                           x.shape().back()};
  return ReshapeLocal(device, x, shape);
}

// The rows of x that are sent, and room for those that are received.
absl::StatusOr<SentTensor> Outgoing(const RankCall& call, const TokenExchange& exchange,
                                    const Tensor& x) {
  Device& device = call.device();
  SentTensor rows;
  DT_ASSIGN_OR_RETURN(rows.from,
                      Tensor::Empty(device, x.dtype(), {exchange.num_sent(), x.size(1)}));
  DT_ASSIGN_OR_RETURN(rows.to,
                      Tensor::Empty(device, x.dtype(), {exchange.num_received(), x.size(1)}));
  DT_RETURN_IF_ERROR(kernels::Embedding(device, exchange.sent(), x,
                                        IndexSet::Interval(0, x.size(0)), x.size(0), rows.from));
  return rows;
}

// Brings the tokens to the experts. `dy`: null in forward.
template <typename Call>
absl::StatusOr<AtExperts> Bring(const Call& call, const Tensor* dy) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(TokenExchange exchange, TokenExchange::Create(call, call.operands[kExperts]));
  AtExperts there{std::move(exchange), {}, {}, {}};
  DT_ASSIGN_OR_RETURN(there.x, AsRows(device, call.operands[kX]));
  DT_ASSIGN_OR_RETURN(there.weights, AsRows(device, call.operands[kWeights]));
  if (dy != nullptr) {
    DT_ASSIGN_OR_RETURN(there.dy, AsRows(device, *dy));
  }
  if (there.exchange.is_alone()) return there;
  std::vector<SentTensor> rows;
  for (Tensor* const one : {&there.x, &there.weights, &there.dy}) {
    if (!one->defined()) continue;
    DT_ASSIGN_OR_RETURN(rows.emplace_back(), Outgoing(call, there.exchange, *one));
    *one = rows.back().to;
  }
  DT_RETURN_IF_ERROR(there.exchange.ToExperts(rows, dy == nullptr ? kThere : kThereInBackward));
  return there;
}

absl::Status Return(const RankCall& call, const TokenExchange& exchange,
                    absl::Span<const ExpertResult> made, int number) {
  if (made.empty() || exchange.is_alone()) return absl::OkStatus();  // rows and into are one tensor
  Device& device = call.device();
  std::vector<SentTensor> moved;
  for (const ExpertResult& one : made) {
    DT_ASSIGN_OR_RETURN(Tensor back, Tensor::Empty(device, one.rows.dtype(),
                                                   {exchange.num_sent(), one.rows.size(1)}));
    moved.push_back({one.rows, std::move(back)});
  }
  DT_RETURN_IF_ERROR(exchange.ToTokens(moved, number));
  for (size_t i = 0; i < made.size(); ++i) {
    DT_RETURN_IF_ERROR(kernels::EmbeddingGrad(device, exchange.sent(), moved[i].to,
                                              IndexSet::Interval(0, made[i].into.size(0)),
                                              made[i].into));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const OpState>> PrepareTokens(const OpStateRequest& request) {
  return MakeTokenGroup(request, kX, kFirstMatrices);
}

absl::Status CheckExpertOperands(absl::string_view op, absl::Span<const Spec* const> operands) {
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({op, ": ", why, " (", SpecsText(operands), ")"});
  };
  for (const int i : {kX, kExperts, kWeights}) {
    if (operands[i]->ndim() > 0) continue;
    return refuse("x, experts and weights have at least one dimension; Reshape them first");
  }
  const Spec &x = *operands[kX], &experts = *operands[kExperts], &weights = *operands[kWeights];
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i == kExperts || operands[i]->dtype == x.dtype) continue;
    return refuse("all but the ids of experts have one type; Cast them to that of x");
  }
  const auto tokens = [](const Spec& spec) {
    return absl::MakeConstSpan(spec.shape).first(spec.ndim() - 1);
  };
  if (tokens(x) == tokens(experts) && experts.shape == weights.shape) return absl::OkStatus();
  return refuse(
      "x is [tokens..., features], experts and weights are [tokens..., choices], with the same "
      "tokens; Reshape or Expand them");
}

absl::StatusOr<AtExperts> ToExperts(const OpCall& call) { return Bring(call, nullptr); }
absl::StatusOr<AtExperts> ToExperts(const GradCall& call) {
  return Bring(call, &call.result_gradients[0]);
}

absl::StatusOr<Picks> PicksOf(const RankCall& call, const TokenExchange& exchange) {
  DT_ASSIGN_OR_RETURN(
      ExpertRouting routing,
      RouteToExperts(call.device(), exchange.picked(), call.OperandIndices(kFirstMatrices, 0),
                     call.decision.operands[kFirstMatrices]->shape[0]));
  return Picks(call.device(), std::move(routing));
}

absl::StatusOr<Tensor> WeightsOf(Device& device, const AtExperts& there, const Picks& picks) {
  DT_ASSIGN_OR_RETURN(const Tensor weights,
                      ReshapeLocal(device, there.weights, {there.weights.numel(), 1}));
  return picks.OfChoices(weights);
}

absl::Status Weigh(Device& device, const Tensor& weights, const Tensor& rows) {
  return kernels::Binary(device, kernels::BinaryOp::kMul, rows, weights.BroadcastTo(rows.shape()),
                         rows);
}

absl::StatusOr<Tensor> Dots(Device& device, const Picks& picks, const Tensor& a, const Tensor& b) {
  DT_ASSIGN_OR_RETURN(const Tensor products, Tensor::Empty(device, a.dtype(), a.shape()));
  DT_RETURN_IF_ERROR(kernels::Binary(device, kernels::BinaryOp::kMul, a, b, products));
  DT_ASSIGN_OR_RETURN(Tensor sums, picks.Rows(a, 1));
  DT_RETURN_IF_ERROR(kernels::Reduce(device, ReduceOp::kSum, products, {1}, sums));
  return sums;
}

absl::StatusOr<ExpertResult> MakeRows(const RankCall& call, const TokenExchange& exchange,
                                      const Tensor& result) {
  DT_ASSIGN_OR_RETURN(const Tensor into, AsRows(call.device(), result));
  if (exchange.is_alone()) return ExpertResult{into, into};
  DT_ASSIGN_OR_RETURN(Tensor rows, Tensor::Empty(call.device(), into.dtype(),
                                                 {exchange.num_received(), into.size(1)}));
  return ExpertResult{std::move(rows), into};
}

absl::StatusOr<ExpertResult> WeightGradients(const GradCall& call, const AtExperts& there,
                                             const Picks& picks, const Tensor& of_picks) {
  DT_ASSIGN_OR_RETURN(ExpertResult made, MakeRows(call, there.exchange, call.gradients[kWeights]));
  DT_ASSIGN_OR_RETURN(const Tensor out, made.rows.Reshape({made.rows.numel(), 1}));
  DT_RETURN_IF_ERROR(picks.AddToChoices(of_picks, out));
  return made;
}

absl::Status ToTokens(const OpCall& call, const TokenExchange& exchange, const ExpertResult& made) {
  return Return(call, exchange, {&made, 1}, kBack);
}
absl::Status ToTokens(const GradCall& call, const TokenExchange& exchange,
                      absl::Span<const ExpertResult> made) {
  return Return(call, exchange, made, kBackInBackward);
}

}  // namespace dtensor::internal
