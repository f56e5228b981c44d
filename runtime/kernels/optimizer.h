// One step of an optimizer on one rank's shard of a parameter, in one pass. Conventions:
// elementwise.h.
//
// For every step: grad has param's type or its AccumulatorOf; the states (m, v and buffer) are f32
// (f64 for f64); grad_scale is a scalar of that type on the device, or undefined for 1. `master` is
// undefined, or f32 if param is bf16 or f16: the formula is then applied to master, and param
// becomes the rounded master. All are contiguous and have the same number of elements.
#ifndef DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_
#define DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

struct AdamWStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;  // from 1: bias corrections are 1 - beta^step
};

// g = grad * grad_scale[0]; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
// param -= lr * (weight_decay * param + (m / (1-b1^step)) / (sqrt(v / (1-b2^step)) + eps)).
absl::Status AdamW(Device& device, const AdamWStep& step, const Tensor& param, const Tensor& grad,
                   const Tensor& m, const Tensor& v, const Tensor& grad_scale,
                   const Tensor& master = {});

struct SgdStep {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // buffer is set to g, and its contents ignored
};

// g = grad * grad_scale[0] + weight_decay * param; with a buffer:
//   buffer = momentum buffer + (1-dampening) g; g = nesterov ? g + momentum buffer : buffer;
// param -= lr * g. buffer: undefined where momentum is 0.
absl::Status Sgd(Device& device, const SgdStep& step, const Tensor& param, const Tensor& grad,
                 const Tensor& buffer, const Tensor& grad_scale, const Tensor& master = {});

// norm[0] = factor * sqrt(sum_of_squares[0]); scale[0] = factor * min(1, max_norm / (norm + 1e-6)),
// which is NaN if the norm is, or factor if max_norm <= 0. sum_of_squares is that of gradients
// without `factor`; `scale` is what these are to be multiplied by. All f32 or all f64 scalars.
absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale, double factor = 1);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_
