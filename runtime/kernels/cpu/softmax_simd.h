// Softmax and its logarithm on rows of one float type, vectorized with run-time dispatch. Each row
// is contiguous; inputs have a row stride, outputs are row-major. Statistics are f32 (f64 for f64).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_SOFTMAX_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_SOFTMAX_SIMD_H_

#include "dtensor/runtime/kernels/arguments/softmax_args.h"
#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

void Softmax(SoftmaxForm form, RowShape shape, InputRows x, void* y);
// The same with each row's (max, sum of exp(x - max)) given.
void SoftmaxFromStats(SoftmaxForm form, RowShape shape, InputRows x, const void* stats, void* y);
// sums[r] = sum(y * dy) of row r; kLog: sum(dy).
void SoftmaxGradSums(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, void* sums);
// With these sums, or, if they are null, with those that it computes from the rows.
void SoftmaxGrad(SoftmaxForm form, RowShape shape, InputRows y, InputRows dy, const void* sums,
                 void* dx);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_SOFTMAX_SIMD_H_
