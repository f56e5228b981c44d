// The flat arguments of optimizer.h's kernels. Memory is contiguous.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPTIMIZER_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPTIMIZER_ARGS_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels {

// A step's scalars, chosen so that an element needs one division and one square root:
//   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, with g = grad_scale * grad;
//   param -= decay * param + rate * m / (sqrt(v) * v_scale + eps).
struct AdamWFactors {
  double beta1, beta2, decay, rate, v_scale, eps;
  double grad_scale = 1;
};

// What every step has.
struct StepArgs {
  DType dtype, grad_dtype;  // states and grad_scale: AccumulatorOf(dtype)
  void* param;
  const void* grad;
  const void* grad_scale;  // null: 1
  void* master;            // f32, of a bf16 or f16 param; null: none
  bool has_master;         // also on meta, where it is null
  int64_t n;
};

struct AdamWArgs {
  AdamWFactors factors;  // except grad_scale, which is on the device
  StepArgs step;
  void *m, *v;
};
static_assert(std::is_trivially_copyable_v<AdamWArgs>);

// g = grad_scale * grad + decay * param; with a buffer: buffer = keep * buffer + gain * g, and
// g = buffer, or g + momentum * buffer (nesterov); param -= rate * g.
struct SgdFactors {
  double rate, decay, momentum, keep, gain;
  bool nesterov;
  double grad_scale = 1;
};

struct SgdArgs {
  SgdFactors factors;  // except grad_scale
  StepArgs step;
  void* buffer;  // null: none
};
static_assert(std::is_trivially_copyable_v<SgdArgs>);

struct ClipScaleArgs {
  DType dtype;  // of all
  double max_norm, factor;
  const void* sum_of_squares;
  void *norm, *scale;
};
static_assert(std::is_trivially_copyable_v<ClipScaleArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_OPTIMIZER_ARGS_H_
