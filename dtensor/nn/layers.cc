#include "dtensor/nn/layers.h"

#include <utility>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t PartOf(int64_t unit, int64_t part) { return part == 0 ? unit : part; }

}  // namespace

LinearLayer::LinearLayer(int64_t in, int64_t out, double stddev, Units units, Bias bias)
    : LinearLayer(
          Parameter::New({out, in}, ParameterInit::Normal(stddev), {units.out, units.in},
                         {PartOf(units.out, units.out_part), PartOf(units.in, units.in_part)}),
          bias == Bias::kNone ? nullptr
                              : Parameter::New({out}, ParameterInit::Constant(0), {units.out},
                                               {PartOf(units.out, units.out_part)}),
          bias) {}

LinearLayer::LinearLayer(ParameterPtr weight, ParameterPtr bias, Bias use)
    : weight_(std::move(weight)), bias_(std::move(bias)) {
  DT_CHECK(weight_ != nullptr && weight_->shape.size() == 2);
  AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});
  if (bias_ == nullptr) return;
  DT_CHECK(bias_->shape == Dims{weight_->shape[0]});
  AddParameter("bias", bias_, {DimRole::kOutput});
  if (use == Bias::kReturned) SetResults({"y", "bias"});
}

TensorOr LinearLayer::Forward(const DistributedTensor& x) {
  const TensorOr weight = weight_->Value();
  if (bias_ == nullptr) return Linear(x, weight);
  DT_ASSIGN_OR_RETURN(const bool partial, LinearIsPartial(x, weight));
  return partial ? Linear(x, weight) : Linear(x, weight, bias_->Value());
}

TensorsOr LinearLayer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  DT_ASSIGN_OR_RETURN(DistributedTensor y, Linear(operands[0], weight_->Value()));
  DT_ASSIGN_OR_RETURN(DistributedTensor bias, bias_->Value());
  return std::vector<DistributedTensor>{std::move(y), std::move(bias)};
}

TensorOr LinearLayer::Finish(const DistributedTensor& y, const Spec& computed) {
  const bool adds = bias_ != nullptr && computed.layout.is_partial();
  return adds ? Add(y, bias_->Value()) : y;
}

EmbeddingLayer::EmbeddingLayer(int64_t rows, int64_t dim, double stddev)
    : EmbeddingLayer(Parameter::New({rows, dim}, ParameterInit::Normal(stddev))) {}

EmbeddingLayer::EmbeddingLayer(ParameterPtr weight) : weight_(std::move(weight)) {
  DT_CHECK(weight_ != nullptr && weight_->shape.size() == 2);
  AddParameter("weight", weight_, {DimRole::kRow, DimRole::kOutput});
}

TensorOr EmbeddingLayer::Forward(const DistributedTensor& ids) {
  return Embedding(ids, weight_->Value());
}

LayerNormLayer::LayerNormLayer(int64_t dim, double eps)
    : weight_(Parameter::New({dim}, ParameterInit::Constant(1))),
      bias_(Parameter::New({dim}, ParameterInit::Constant(0))),
      eps_(eps) {
  AddParameter("weight", weight_);
  AddParameter("bias", bias_);
}

TensorOr LayerNormLayer::Forward(const DistributedTensor& x) {
  return LayerNorm(x, weight_->Value(), bias_->Value(), eps_);
}

RmsNormLayer::RmsNormLayer(int64_t dim, double eps)
    : weight_(Parameter::New({dim}, ParameterInit::Constant(1))), eps_(eps) {
  AddParameter("weight", weight_);
}

TensorOr RmsNormLayer::Forward(const DistributedTensor& x) {
  return RmsNorm(x, weight_->Value(), eps_);
}

}  // namespace dtensor
