// The gradients of elementwise.h on contiguous memory of one float type, vectorized with run-time
// dispatch. `stream`: as in elementwise_simd.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_GRAD_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_GRAD_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace dtensor::kernels::simd {

// `saved` is the operand or the result (GradReadsResult).
void UnaryGrad(UnaryOp op, DType dtype, const void* saved, const void* dy, void* dx, int64_t n,
               bool stream);
void BinaryGrad(BinaryOp op, int operand, DType dtype, const void* a, const void* b, const void* dy,
                void* dx, int64_t n, bool stream);
// With `stream`, dgate and dup must have the same alignment within cache lines.
void SiluMulGrad(DType dtype, const void* gate, const void* up, const void* dy, void* dgate,
                 void* dup, int64_t n, bool stream);
void ClampedSwiGluGrad(DType dtype, double slope, double limit, const void* gate, const void* up,
                       const void* dy, void* dgate, void* dup, int64_t n, bool stream);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_GRAD_SIMD_H_
