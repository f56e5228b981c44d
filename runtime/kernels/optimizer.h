// One AdamW step on one rank's shard of a parameter, in one pass. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_
#define DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::kernels {

struct AdamWStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;  // from 1: bias corrections are 1 - beta^step
};

// g = grad * grad_scale[0]; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
// param -= lr * (weight_decay * param + (m / (1-b1^step)) / (sqrt(v / (1-b2^step)) + eps)).
// m, v: f32 (f64 for f64) of param's shape; grad_scale: f32 scalar (f64 for f64) on the device, or
// undefined for 1. All contiguous and of one element count.
absl::Status AdamW(Device& device, const AdamWStep& step, const Tensor& param, const Tensor& grad,
                   const Tensor& m, const Tensor& v, const Tensor& grad_scale);

// norm[0] = sqrt(sum_of_squares[0]); scale[0] = min(1, max_norm / (norm + 1e-6)), or 1 when
// max_norm <= 0. All f32 or all f64 scalars.
absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_
