#include "dtensor/nn/mixture.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The matrices of all experts, which checkpoints store one by one under this name.
ParameterPtr NewStack(int64_t experts, int64_t rows, int64_t cols, double stddev,
                      const std::string& name) {
  ParameterPtr stack = Parameter::New({experts, rows, cols}, ParameterInit::Normal(stddev));
  for (int64_t e = 0; e < experts; ++e) {
    stack->parts.push_back({.module = "", .slice = absl::StrCat(e, ".", name, ".weight")});
  }
  return stack;
}

// Divides each row by its sum.
TensorOr Normalized(const DistributedTensor& x) {
  Dims column = x.shape();
  column.back() = 1;
  return Div(x, Reshape(Sum(x, {-1}), column));
}

// How many tokens picked each expert, and the sums of p [..., experts] over all tokens, as [1, 2,
// experts].
TensorOr RouterSums(const DistributedTensor& p, const DistributedTensor& ids) {
  const int64_t experts = p.shape().back();
  std::vector<int> tokens(p.ndim() - 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TensorOr both = Stack({Bincount(ids, experts, p.dtype()), Sum(p, tokens)}, 0);
  return Reshape(both, {1, 2, experts});
}

}  // namespace

ExpertsLayer::ExpertsLayer(const MixtureConfig& config)
    : gate_(NewStack(config.experts, config.hidden, config.dim, config.stddev, config.gate_name)),
      up_(NewStack(config.experts, config.hidden, config.dim, config.stddev, config.up_name)),
      down_(NewStack(config.experts, config.dim, config.hidden, config.down_stddev,
                     config.down_name)) {
  SetOperands({"x", "experts", "weights"});
  AddParameter(config.gate_name, gate_, {DimRole::kExpert, DimRole::kHidden, DimRole::kOther});
  AddParameter(config.up_name, up_, {DimRole::kExpert, DimRole::kHidden, DimRole::kOther});
  AddParameter(config.down_name, down_, {DimRole::kExpert, DimRole::kOutput, DimRole::kHidden});
}

TensorsOr ExpertsLayer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DeviceMesh& mesh = operands[0].mesh();
  DT_ASSIGN_OR_RETURN(DistributedTensor y,
                      ExpertMlp(operands[0], operands[1], operands[2], gate_->ValueOn(mesh),
                                up_->ValueOn(mesh), down_->ValueOn(mesh)));
  return std::vector<DistributedTensor>{std::move(y)};
}

MixtureOfExperts::MixtureOfExperts(const MixtureConfig& config,
                                   std::unique_ptr<Module> shared_expert)
    : config_(config),
      router_(config.dim, config.experts, config.stddev),
      experts_(config),
      shared_expert_(std::move(shared_expert)) {
  if (config.router_sums) SetResults({"y", "router_sums"});
  AddChild("gate", &router_);
  AddChild("experts", &experts_);
  if (shared_expert_ == nullptr) return;
  shared_expert_gate_ = std::make_unique<LinearLayer>(config.dim, 1, config.stddev);
  AddChild("shared_expert", shared_expert_.get());
  AddChild("shared_expert_gate", shared_expert_gate_.get());
}

TensorsOr MixtureOfExperts::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DistributedTensor& x = operands[0];
  DT_ASSIGN_OR_RETURN(DistributedTensor logits, router_(x));
  if (SizeOf(logits.dtype()) == 2) {  // rounded to 16 bits, probabilities would tie
    DT_ASSIGN_OR_RETURN(logits, Cast(logits, DType::kF32));
  }
  DT_ASSIGN_OR_RETURN(const DistributedTensor p, Softmax(logits));
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> picked,
                      TopK(p, config_.experts_per_token));
  const TensorOr weights = config_.normalize ? Normalized(picked[0]) : TensorOr(picked[0]);
  std::vector<DistributedTensor> results(1);
  DT_ASSIGN_OR_RETURN(results[0], AddShared(experts_(x, picked[1], Cast(weights, x.dtype())), x));
  if (config_.router_sums) {
    DT_ASSIGN_OR_RETURN(results.emplace_back(), RouterSums(p, picked[1]));
  }
  return results;
}

TensorOr MixtureOfExperts::AddShared(TensorOr y, const DistributedTensor& x) {
  if (shared_expert_ == nullptr) return y;
  const TensorOr gate = Sigmoid((*shared_expert_gate_)(x));  // first, whatever the compiler
  return Add(y, Mul(gate, (*shared_expert_)(x)));
}

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

}  // namespace dtensor
