// Powers of floats and their gradient on contiguous memory, vectorized where the exponent allows
// it. `stream`: as in elementwise_simd.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_POW_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_POW_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::simd {

void Pow(DType dtype, const void* a, double exponent, void* out, int64_t n, bool stream);
void PowGrad(DType dtype, const void* x, double exponent, const void* dy, void* dx, int64_t n,
             bool stream);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_POW_SIMD_H_
