// RMSNorm on rows of one float type, vectorized with run-time dispatch. Each row is contiguous;
// inputs have a row stride, outputs are row-major. Statistics are f32 (f64 for f64); if they are
// null, rows are complete and their statistics are computed. `total`: a row's elements on all
// shards.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

// squares[r] = sum(x^2).
void RowSquares(RowShape shape, InputRows x, void* squares);
void RmsNorm(RowShape shape, InputRows x, const void* weight, double eps, const void* squares,
             int64_t total, void* y, void* rstd);
// dots[r] = sum(dy * weight * x).
void RmsNormGradDots(RowShape shape, InputRows x, const void* weight, InputRows dy, void* dots);
// Adds to dweight, which holds n sums.
void RmsNormGrad(RowShape shape, InputRows x, const void* weight, const void* rstd, InputRows dy,
                 const void* dots, int64_t total, void* dx, void* dweight);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_NORM_SIMD_H_
