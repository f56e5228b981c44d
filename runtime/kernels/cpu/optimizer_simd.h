// AdamW on contiguous memory, vectorized with run-time dispatch.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::simd {

// The step's scalars, so that an element needs one division and one square root:
//   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, with g = grad_scale * grad;
//   param -= decay * param + rate * m / (sqrt(v) * v_scale + eps).
struct AdamWFactors {
  double beta1, beta2, grad_scale, decay, rate, v_scale, eps;
};

// param: dtype; grad: grad_dtype; m and v: f32 (f64 for f64).
void AdamW(const AdamWFactors& factors, DType dtype, void* param, DType grad_dtype,
           const void* grad, void* m, void* v, int64_t n);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
