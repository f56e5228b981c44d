// Rotary embedding of one token's heads, vectorized with run-time dispatch.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ROPE_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ROPE_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::simd {

// Heads of 2 * half contiguous elements: `x_stride` elements apart in x, row-major in y.
struct TokenHeads {
  DType dtype;
  int64_t heads, half, x_stride;
};

// y[i] = x[i] cos[i] - x[i + half] sin[i], y[i + half] = x[i + half] cos[i] + x[i] sin[i];
// `inverse` negates the sines. cos and sin are f32 (f64 for f64).
void RotateHeads(TokenHeads shape, const void* x, const void* cos, const void* sin, bool inverse,
                 void* y);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ROPE_SIMD_H_
