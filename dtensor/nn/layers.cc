#include "dtensor/nn/layers.h"

#include <utility>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

LinearLayer::LinearLayer(int64_t in, int64_t out, double stddev, Units units)
    : LinearLayer(Parameter::New({out, in}, ParameterInit::Normal(stddev), {units.out, units.in})) {
}

LinearLayer::LinearLayer(ParameterPtr weight) : weight_(std::move(weight)) {
  DT_CHECK(weight_ != nullptr && weight_->shape.size() == 2);
  AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});
}

TensorOr LinearLayer::Forward(const DistributedTensor& x) { return Linear(x, weight_->tensor); }

EmbeddingLayer::EmbeddingLayer(int64_t rows, int64_t dim, double stddev)
    : EmbeddingLayer(Parameter::New({rows, dim}, ParameterInit::Normal(stddev))) {}

EmbeddingLayer::EmbeddingLayer(ParameterPtr weight) : weight_(std::move(weight)) {
  DT_CHECK(weight_ != nullptr && weight_->shape.size() == 2);
  AddParameter("weight", weight_, {DimRole::kRow, DimRole::kOutput});
}

TensorOr EmbeddingLayer::Forward(const DistributedTensor& ids) {
  return Embedding(ids, weight_->tensor);
}

RmsNormLayer::RmsNormLayer(int64_t dim, double eps)
    : weight_(Parameter::New({dim}, ParameterInit::Constant(1))), eps_(eps) {
  AddParameter("weight", weight_);
}

TensorOr RmsNormLayer::Forward(const DistributedTensor& x) {
  return RmsNorm(x, weight_->tensor, eps_);
}

}  // namespace dtensor
