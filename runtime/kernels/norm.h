// RMSNorm and LayerNorm over the last dimension of one rank's local tensors; in stages, if that
// dimension is sharded over P shards. Conventions: elementwise.h.
//
// In stages, the first kernel computes statistics of the shard, [..., k]. Those of all shards, [P,
// ..., k] and row-major, are the input of the second kernel, which merges them in ascending order.
// `total` is then the number of a row's elements on all shards. Local rows that are complete need
// one kernel: `stats` is null, and `total` is n.
#ifndef DTENSOR_RUNTIME_KERNELS_NORM_H_
#define DTENSOR_RUNTIME_KERNELS_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). x, y: [..., n]; weight: [n] of x's type;
// rstd: [...] f32 (f64 for f64). stats: of RowSquares.
absl::Status RmsNorm(Device& device, const Tensor& x, const Tensor& weight, double eps,
                     const Tensor& y, const Tensor& rstd, const Tensor* stats = nullptr,
                     int64_t total = 0);
// squares[...] f32 (f64 for f64) = sum(x^2).
absl::Status RowSquares(Device& device, const Tensor& x, const Tensor& squares);
// dx = rstd * (dy * weight - xhat * mean(dy * weight * xhat)), xhat = x * rstd; dweight = sum over
// rows of dy * xhat, in f32 (f64 for f64): rows are added one by one within blocks, of 256 rows on
// the host and of at most 64 on a GPU, and then the blocks are added. The division into blocks
// depends on shapes and the type alone. dweight: [n] of x's type. stats: of RmsNormGradDots.
absl::Status RmsNormGrad(Device& device, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                         const Tensor* stats = nullptr, int64_t total = 0);
// dots[...] f32 (f64 for f64) = sum(dy * weight * x).
absl::Status RmsNormGradDots(Device& device, const Tensor& x, const Tensor& weight,
                             const Tensor& dy, const Tensor& dots);

// y = xhat * weight + bias, xhat = (x - mean) * rstd, rstd = 1 / sqrt(variance + eps). The variance
// is the mean of squares about the mean, computed in two passes, so a large mean costs no accuracy.
// weight and bias: [n] of x's type; mean and rstd: [...] f32 (f64 for f64). stats: of RowMoments.
absl::Status LayerNorm(Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       double eps, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                       const Tensor* stats = nullptr);
// moments[..., 3] f64 = (n, mean, sum (x - mean)^2); for no elements (0, 0, 0). Merged pairwise:
// Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances" (1979); in f64, since the difference of two large means may be small.
absl::Status RowMoments(Device& device, const Tensor& x, const Tensor& moments);
// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight; dweight and dbias, [n] of x's
// type: sums over rows of dy * xhat and of dy, as RmsNormGrad's. stats: of LayerNormGradSums.
absl::Status LayerNormGrad(Device& device, const Tensor& x, const Tensor& weight,
                           const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                           const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor* stats = nullptr, int64_t total = 0);
// sums[..., 2] f32 (f64 for f64) = (sum(g), sum(g * xhat)).
absl::Status LayerNormGradSums(Device& device, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                               const Tensor& sums);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_NORM_H_
