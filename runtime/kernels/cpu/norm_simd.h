// Softmax and RMSNorm on rows of one float type, vectorized with run-time dispatch. Each row is
// contiguous; inputs have a row stride, outputs are row-major. Statistics are f32 (f64 for f64).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_

#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

void Softmax(RowShape shape, InputRows x, void* y);
void SoftmaxGrad(RowShape shape, InputRows y, InputRows dy, void* dx);
void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, void* y, void* rstd);
// Adds to dweight, which holds n sums.
void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 void* dx, void* dweight);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_
