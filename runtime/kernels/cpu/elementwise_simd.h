// The elementwise kernels on contiguous memory of one float type, vectorized with run-time
// dispatch. `stream`: write past the caches (for large outputs that nobody reads soon).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace dtensor::kernels::simd {

void Binary(BinaryOp op, DType dtype, const void* a, const void* b, void* out, int64_t n,
            bool stream);
void Unary(UnaryOp op, DType dtype, const void* a, void* out, int64_t n,
           bool stream);  // not kCopy, kNot
void Affine(DType dtype, const void* a, double scale, double shift, void* out, int64_t n,
            bool stream);
// Between different types of f32, bf16 and f16.
void Convert(DType from, const void* a, DType to, void* out, int64_t n, bool stream);

void SiluMul(DType dtype, const void* gate, const void* up, void* y, int64_t n, bool stream);
void ClampedSwiGlu(DType dtype, double slope, double limit, const void* gate, const void* up,
                   void* y, int64_t n, bool stream);
// The sum of in[0, terms).
void AddN(DType dtype, const void* const* in, int terms, void* out, int64_t n, bool stream);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_SIMD_H_
