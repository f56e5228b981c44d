// The tokens that a rank's experts work on, and the way of the experts' results back to them. For
// operators whose operands begin with x [tokens..., features], experts (ids) [tokens..., choices],
// weights [tokens..., choices] and matrices [experts, ...]. For the sources of this folder.
#ifndef DTENSOR_OPS_EXPERT_TOKENS_H_
#define DTENSOR_OPS_EXPERT_TOKENS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/ops/expert_picks.h"
#include "dtensor/ops/token_exchange.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

enum ExpertOperand { kX, kExperts, kWeights, kFirstMatrices };

// For OpDef::prepare.
absl::StatusOr<std::shared_ptr<const OpState>> PrepareTokens(const OpStateRequest& request);
// For OpDef::check: that x, experts and weights fit each other, and that all but experts have one
// type.
absl::Status CheckExpertOperands(absl::string_view op, absl::Span<const Spec* const> operands);

// A row for each token at this rank's experts: this rank's own tokens, or those that it was sent.
struct AtExperts {
  TokenExchange exchange;
  Tensor x, weights, dy;  // dy: in backward
};
absl::StatusOr<AtExperts> ToExperts(const OpCall& call);
absl::StatusOr<AtExperts> ToExperts(const GradCall& call);

// What of these tokens picked this rank's experts.
absl::StatusOr<Picks> PicksOf(const RankCall& call, const TokenExchange& exchange);
// The weight of each pick, [picks, 1]; and rows *= weights, for a row for each pick.
absl::StatusOr<Tensor> WeightsOf(Device& device, const AtExperts& there, const Picks& picks);
absl::Status Weigh(Device& device, const Tensor& weights, const Tensor& rows);

// The dot product of each pick's rows of a and b, [picks, 1].
absl::StatusOr<Tensor> Dots(Device& device, const Picks& picks, const Tensor& a, const Tensor& b);

// A result of the experts, a row for each token that they worked on, and where its tokens are to
// get it: the sum of what the ranks made of them.
struct ExpertResult {
  Tensor rows, into;
};
// Where the experts write what belongs into `result`, [tokens..., n].
absl::StatusOr<ExpertResult> MakeRows(const RankCall& call, const TokenExchange& exchange,
                                      const Tensor& result);
// The gradient of the weights, from those of the picks' weights, [picks, 1].
absl::StatusOr<ExpertResult> WeightGradients(const GradCall& call, const AtExperts& there,
                                             const Picks& picks, const Tensor& of_picks);
absl::Status ToTokens(const OpCall& call, const TokenExchange& exchange, const ExpertResult& made);
absl::Status ToTokens(const GradCall& call, const TokenExchange& exchange,
                      absl::Span<const ExpertResult> made);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_EXPERT_TOKENS_H_
