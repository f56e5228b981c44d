#include "dtensor/nn/mixture.h"

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

MixtureOfExperts::MixtureOfExperts(const MixtureConfig& config)
    : experts_per_token_(config.experts_per_token),
      normalize_(config.normalize),
      router_(config.dim, config.experts, config.stddev),
      experts_(config) {
  AddChild("gate", &router_);
  AddChild("experts", &experts_);
}

TensorOr MixtureOfExperts::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(DistributedTensor logits, router_(x));
  if (SizeOf(logits.dtype()) == 2) {  // rounded to 16 bits, probabilities would tie
    DT_ASSIGN_OR_RETURN(logits, Cast(logits, DType::kF32));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> picked,
                      TopK(Softmax(logits), experts_per_token_));
  const TensorOr weights = normalize_ ? Normalized(picked[0]) : TensorOr(picked[0]);
  return experts_(x, picked[1], Cast(weights, x.dtype()));
}

}  // namespace dtensor
