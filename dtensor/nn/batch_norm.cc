#include "dtensor/nn/batch_norm.h"

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/recompute.h"

namespace dtensor {
namespace {

// Of all elements of each feature.
TensorOr MeanOf(const TensorOr& x) {
  DT_RETURN_IF_ERROR(x.status());
  std::vector<int> others(x->ndim() - 1);
  std::iota(others.begin(), others.end(), 0);
  DT_ASSIGN_OR_RETURN(const DistributedTensor mean, Mean(x, others));
  return mean.Redistribute(mean.layout().Dual());
}

// In the type of x, where x is.
TensorOr ValueFor(const Parameter& parameter, const DistributedTensor& x) {
  return Cast(parameter.ValueOn(x.mesh()), x.dtype());
}

// running += momentum (value - running)
absl::Status MoveTowards(const TensorOr& value, double momentum, const Parameter& running) {
  DT_RETURN_IF_ERROR(value.status());
  const DistributedTensor& to = running.tensor;
  const TensorOr here = value->Redistribute(to.layout());
  DT_ASSIGN_OR_RETURN(const DistributedTensor moved,
                      Add(Scale(to, 1 - momentum), Scale(Cast(here, to.dtype()), momentum)));
  return running.Write(moved);
}

ParameterPtr NewBuffer(int64_t features, double value) {
  ParameterPtr buffer = Parameter::New({features}, ParameterInit::Constant(value));
  buffer->keeps_precision = true;  // it moves by small steps
  return buffer;
}

}  // namespace

BatchNormLayer::BatchNormLayer(int64_t features, Options options)
    : options_(options),
      weight_(Parameter::New({features}, ParameterInit::Constant(1))),
      bias_(Parameter::New({features}, ParameterInit::Constant(0))),
      running_mean_(NewBuffer(features, 0)),
      running_var_(NewBuffer(features, 1)) {
  DT_REQUIRE(features >= 1 && options.eps >= 0 && options.momentum >= 0 && options.momentum <= 1,
             "BatchNormLayer: give 1 feature or more, an eps of 0 or more, and a momentum from 0 "
             "to 1");
  AddParameter("weight", weight_);
  AddParameter("bias", bias_);
  AddBuffer("running_mean", running_mean_);
  AddBuffer("running_var", running_var_);
}

absl::Status BatchNormLayer::Check(const DistributedTensor& x) const {
  const int64_t features = weight_->shape[0];
  if (x.ndim() < 2 || x.shape().back() != features || !IsFloat(x.dtype())) {
    return InvalidArgument({"BatchNormLayer: x is ", x.ToString(), "; give floats [batch, ..., ",
                            absl::StrCat(features), "], features last"});
  }
  if (!training() || NumElements(x.shape()) >= 2 * features) return absl::OkStatus();
  return InvalidArgument({"BatchNormLayer: x is ", x.ToString(), ", which has ",
                          absl::StrCat(NumElements(x.shape()) / features),
                          " elements of each feature, and a variance needs two; give a larger "
                          "batch, or evaluate by SetTraining(false)"});
}

TensorOr BatchNormLayer::Forward(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(Check(x));
  DT_ASSIGN_OR_RETURN(const DistributedTensor whole, x.Redistribute(x.layout().Dual()));
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide,
                      Cast(whole, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32));
  return Cast(training() ? ByBatch(wide) : ByRunning(wide), x.dtype());
}

TensorOr BatchNormLayer::ByBatch(const DistributedTensor& x) const {
  DT_ASSIGN_OR_RETURN(const DistributedTensor mean, MeanOf(x));
  DT_ASSIGN_OR_RETURN(const DistributedTensor centered, Sub(x, mean));
  DT_ASSIGN_OR_RETURN(const DistributedTensor variance, MeanOf(Mul(centered, centered)));
  if (!IsRecomputing(x.context())) {
    const NoGrad no_grad(x.context());
    const auto n = static_cast<double>(NumElements(x.shape()) / x.shape().back());
    DT_RETURN_IF_ERROR(MoveTowards(mean.Detach(), options_.momentum, *running_mean_));
    DT_RETURN_IF_ERROR(
        MoveTowards(Scale(variance.Detach(), n / (n - 1)), options_.momentum, *running_var_));
  }
  return Scaled(centered, variance);
}

TensorOr BatchNormLayer::ByRunning(const DistributedTensor& x) const {
  return Scaled(Sub(x, ValueFor(*running_mean_, x)), ValueFor(*running_var_, x));
}

TensorOr BatchNormLayer::Scaled(const TensorOr& centered, const TensorOr& variance) const {
  DT_RETURN_IF_ERROR(centered.status());
  const TensorOr factor =
      Mul(Rsqrt(AddScalar(variance, options_.eps)), ValueFor(*weight_, *centered));
  return Add(Mul(centered, factor), ValueFor(*bias_, *centered));
}

}  // namespace dtensor
