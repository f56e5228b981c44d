// Comparisons, and selection by a condition, on contiguous memory, vectorized with run-time
// dispatch. `stream`: as in elementwise_simd.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_COMPARISON_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_COMPARISON_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace dtensor::kernels::simd {

// f32 and bf16; not kGreater and kGreaterEqual.
void Compare(CompareOp op, DType dtype, const void* a, const void* b, bool* out, int64_t n,
             bool stream);
// out[i] = condition[i] ? a[i] : b[i], elements of `size` bytes, 2 or 4.
void Where(int64_t size, const bool* condition, const void* a, const void* b, void* out, int64_t n,
           bool stream);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_COMPARISON_SIMD_H_
