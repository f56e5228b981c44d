// AdamW on contiguous memory, vectorized with run-time dispatch.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/optimizer_args.h"

namespace dtensor::kernels::simd {

// param: dtype; grad: grad_dtype; m and v: f32 (f64 for f64).
void AdamW(const AdamWFactors& factors, DType dtype, void* param, DType grad_dtype,
           const void* grad, void* m, void* v, int64_t n);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_SIMD_H_
