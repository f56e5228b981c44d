// BatchNorm: normalizes each feature over the batch and all positions (Ioffe and Szegedy 2015).
#ifndef DTENSOR_NN_BATCH_NORM_H_
#define DTENSOR_NN_BATCH_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// y = (x - mean) / sqrt(variance + eps) * weight + bias, for each feature: x and y [batch, ...,
// features], weight and bias [features], which begin as 1 and 0. As torch's BatchNorm1d to 3d, but
// features are the last dimension.
//
// In training, mean and variance (which divides by n) are over all other dimensions of x: of the
// global batch, wherever it is sharded, as torch's SyncBatchNorm. Two all-reduces of `features`
// numbers over the axes that shard these dimensions, and two in Backward. Each call, also one
// without gradients, moves the buffers
//
//   running_mean += momentum (mean - running_mean)
//   running_var  += momentum (variance n / (n - 1) - running_var)
//
// but not when Recompute() runs it again. In evaluation (SetTraining(false)) mean and variance are
// these buffers, and nothing moves. All of it is computed in f32 (f64 of an f64 x); the buffers are
// f32, of an f64 model f64. PyTorch's buffer num_batches_tracked is not kept; hugging_face/load.h
// passes it over.
//
// Features may be sharded: x stays so, and means, variances and the gradients of weight and bias
// are gathered over their axes, a number for each feature. A Partial sum is reduced first. Sharded
// by FullyShard, the running statistics are gathered with the other parameters, again after each
// call has moved them. Errors: kInvalidArgument for an x of another number of features, of fewer
// than two dimensions or not of floats, and in training for one with fewer than two elements of
// each feature.
class BatchNormLayer : public Module {
 public:
  struct Options {
    double eps = 1e-5;
    double momentum = 0.1;
  };
  explicit BatchNormLayer(int64_t features) : BatchNormLayer(features, Options()) {}
  // Requires: features >= 1, eps >= 0, 0 <= momentum <= 1.
  BatchNormLayer(int64_t features, Options options);
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }
  const ParameterPtr& running_mean() const { return running_mean_; }
  const ParameterPtr& running_var() const { return running_var_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  absl::Status Check(const DistributedTensor& x) const;
  TensorOr ByBatch(const DistributedTensor& x) const;
  TensorOr ByRunning(const DistributedTensor& x) const;
  // centered / sqrt(variance + eps) * weight + bias
  TensorOr Scaled(const TensorOr& centered, const TensorOr& variance) const;

  const Options options_;
  const ParameterPtr weight_, bias_, running_mean_, running_var_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_BATCH_NORM_H_
