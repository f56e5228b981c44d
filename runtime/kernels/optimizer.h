// One step of an optimizer on one rank's shard of a parameter, in one pass. Conventions:
// elementwise.h.
//
// Of every step: grad has param's type or its AccumulatorOf; states, which are m, v and buffer, are
// f32 (f64 for f64); grad_scale is such a scalar on the device, or undefined for 1. `master` is
// undefined, or f32 where param is bf16 or f16: then it takes param's place in the formula, and
// param becomes what it is, rounded. All are contiguous and of one element count.
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
  bool first = false;  // the buffer, whatever is in it, becomes g
};

// g = grad * grad_scale[0] + weight_decay * param; with a buffer:
//   buffer = momentum buffer + (1-dampening) g; g = nesterov ? g + momentum buffer : buffer;
// param -= lr * g. buffer: undefined where momentum is 0.
absl::Status Sgd(Device& device, const SgdStep& step, const Tensor& param, const Tensor& grad,
                 const Tensor& buffer, const Tensor& grad_scale, const Tensor& master = {});

// norm[0] = factor * sqrt(sum_of_squares[0]); scale[0] = factor * min(1, max_norm / (norm + 1e-6)),
// which is NaN where the norm is, or factor when max_norm <= 0: what gradients that are `factor`
// times the ones which were summed are to be multiplied by. All f32 or all f64 scalars.
absl::Status ClipScale(Device& device, const Tensor& sum_of_squares, double max_norm,
                       const Tensor& norm, const Tensor& scale, double factor = 1);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_OPTIMIZER_H_
