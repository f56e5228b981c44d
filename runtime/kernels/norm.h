// Softmax and RMSNorm over the last dimension of one rank's local tensors. Conventions:
// elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_NORM_H_
#define DTENSOR_RUNTIME_KERNELS_NORM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

// y = softmax(x); x, y: [..., n]. A row of -inf gives zeros.
absl::Status Softmax(Device& device, const Tensor& x, const Tensor& y);
// dx = y * (dy - sum(y * dy)).
absl::Status SoftmaxGrad(Device& device, const Tensor& y, const Tensor& dy, const Tensor& dx);

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). x, y: [..., n]; weight: [n] of x's type;
// rstd: [...] f32 (f64 for f64).
absl::Status RmsNorm(Device& device, const Tensor& x, const Tensor& weight, double eps,
                     const Tensor& y, const Tensor& rstd);
// dx = rstd * (dy * weight - xhat * mean(dy * weight * xhat)), xhat = x * rstd; dweight = sum over
// rows of dy * xhat, in f32, ascending (in blocks of 256 rows). dweight: [n] of x's type.
absl::Status RmsNormGrad(Device& device, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dx, const Tensor& dweight);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_NORM_H_
