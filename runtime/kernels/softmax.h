// Softmax and its logarithm over the last dimension of one rank's local tensors; in stages, if that
// dimension is sharded over P shards. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_SOFTMAX_H_
#define DTENSOR_RUNTIME_KERNELS_SOFTMAX_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/softmax_args.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// y = softmax(x), or for kLog its logarithm; x, y: [..., n]. A row of -inf gives zeros; kLog: -inf.
absl::Status Softmax(Device& device, SoftmaxForm form, const Tensor& x, const Tensor& y);
// dx = y * (dy - sum(y * dy)); kLog: dy - exp(y) * sum(dy).
absl::Status SoftmaxGrad(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                         const Tensor& dx);

// Forward, stage 1: stats[..., 2] f32 (f64 for f64) = (max, sum exp(x - max)); for no elements
// (-inf, 0).
absl::Status SoftmaxStats(Device& device, const Tensor& x, const Tensor& stats);
// Stage 2: y from the stats of all shards, [P, ..., 2], in ascending order.
absl::Status SoftmaxMerge(Device& device, SoftmaxForm form, const Tensor& x, const Tensor& stats,
                          const Tensor& y);
// Backward, stage 1: sums[...] f32 (f64 for f64) = sum(y * dy); kLog: sum(dy).
absl::Status SoftmaxGradSums(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                             const Tensor& sums);
// Stage 2: dx from the sums of all shards, [P, ...], added up in ascending order.
absl::Status SoftmaxGradMerge(Device& device, SoftmaxForm form, const Tensor& y, const Tensor& dy,
                              const Tensor& sums, const Tensor& dx);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_SOFTMAX_H_
