#include "dtensor/nn/balancing.h"

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/mixture.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"

namespace dtensor {

TensorOr BalancingLoss(const TensorOr& router_sums, int64_t tokens) {
  const TensorOr of_all = Sum(router_sums, {0});
  DT_RETURN_IF_ERROR(of_all.status());
  const Dims& shape = router_sums->shape();
  if (shape.size() != 3 || shape[0] < 1 || shape[1] != 2 || tokens < 1) {
    return InvalidArgument({"BalancingLoss of sums ", router_sums->ToString(), " and ",
                            absl::StrCat(tokens),
                            " tokens; give [layers, 2, experts] of a layer "
                            "or more, as a model with router_sums returns them, and 1 token or "
                            "more"});
  }
  // With whole counts the probabilities may stay Partial, and so may the loss.
  DT_ASSIGN_OR_RETURN(const DistributedTensor counts, Slice(of_all, 0, 0, 1));
  const TensorOr whole = counts.Detach().Redistribute(Layout::Replicated(counts.mesh(), 2));
  const TensorOr products = Mul(whole, Slice(of_all, 0, 1, 2));
  const double n = static_cast<double>(shape[0]) * static_cast<double>(tokens);
  return Scale(Sum(products, {0, 1}), static_cast<double>(shape[2]) / (n * n));
}

namespace {

// The routers of sigmoid scores, by the row that their mixture has in router_sums.
absl::StatusOr<std::map<int64_t, ParameterPtr>> ExpertBiasesOf(Module& model,
                                                               const DistributedTensor& sums) {
  std::map<int64_t, ParameterPtr> biases;
  int64_t mixtures = 0;
  model.VisitModules([&](const std::string&, Module& module) {
    const auto* const mixture = dynamic_cast<MixtureOfExperts*>(&module);
    if (mixture == nullptr) return;
    const ParameterPtr& bias = mixture->router().expert_bias();
    if (bias != nullptr) biases[mixtures] = bias;
    ++mixtures;
  });
  if (biases.empty()) {
    return InvalidArgument({"BalanceByBias: the model has no mixture with sigmoid scores; balance ",
                            "others by a part of their loss, BalancingLoss"});
  }
  for (const auto& [row, bias] : biases) {
    if (!bias->tensor.defined()) {
      return absl::FailedPreconditionError(
          "BalanceByBias: the model has no memory; Materialize it, or apply a plan to it");
    }
    const Dims wanted = {mixtures, 2, bias->shape[0]};
    if (sums.shape() == wanted) continue;
    return InvalidArgument({"BalanceByBias: router_sums are ", sums.ToString(),
                            ", and those of the model are ", DimsToString(wanted),
                            "; give its own, as it returned them"});
  }
  return biases;
}

// Moves `bias` towards experts that fewer tokens picked than the mean.
absl::Status MoveBias(const Parameter& bias, const TensorOr& counts, double rate) {
  DT_RETURN_IF_ERROR(counts.status());
  const DistributedTensor& to = bias.tensor;
  DT_ASSIGN_OR_RETURN(const DistributedTensor here,
                      counts->Redistribute(Layout::Replicated(to.mesh(), 1)));
  DT_ASSIGN_OR_RETURN(const DistributedTensor count, Cast(here, to.dtype()));
  const TensorOr mean = Mean(count, {0}), is_less = Less(count, mean);
  const TensorOr is_more = Greater(count, mean), up = FullLike(count, rate, {});
  const TensorOr down = FullLike(count, -rate, {}), none = FullLike(count, 0, {});
  const TensorOr step = Where(is_less, up, Where(is_more, down, none));
  DT_ASSIGN_OR_RETURN(const DistributedTensor moved, Add(to, step));
  return bias.Write(moved);
}

}  // namespace

absl::Status BalanceByBias(Module& model, const DistributedTensor& router_sums, double rate) {
  if (!router_sums.defined()) return InvalidArgument({"BalanceByBias: router_sums are undefined"});
  if (!std::isfinite(rate) || rate < 0) {
    return InvalidArgument(
        {"BalanceByBias: the rate is ", absl::StrCat(rate), "; give a number from 0, as 0.001"});
  }
  DT_ASSIGN_OR_RETURN(const auto biases, ExpertBiasesOf(model, router_sums));
  const NoGrad no_grad(router_sums.context());
  const int64_t experts = router_sums.shape()[2];
  DT_ASSIGN_OR_RETURN(const DistributedTensor sums,
                      router_sums.Detach().Redistribute(Layout::Replicated(router_sums.mesh(), 3)));
  for (const auto& [row, bias] : biases) {
    const TensorOr counts = Reshape(Slice(Slice(sums, 0, row, row + 1), 1, 0, 1), {experts});
    DT_RETURN_IF_ERROR(MoveBias(*bias, counts, rate));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
