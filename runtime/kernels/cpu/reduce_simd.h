// Reductions of contiguous memory of one float type, vectorized with run-time dispatch.
// Accumulators and results are f32 (f64 for f64). kMax and kMin: a NaN among the elements is the
// result.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace dtensor::kernels::simd {

// *result = op over x[0, n); the identity for none.
void ReduceRow(ReduceOp op, DType dtype, const void* x, int64_t n, void* result);
// acc[i] = acc[i] op x[i].
void ReduceInto(ReduceOp op, DType dtype, const void* x, void* acc, int64_t n);
// In f64, whatever the type.
double SumOfSquares(DType dtype, const void* x, int64_t n);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_SIMD_H_
