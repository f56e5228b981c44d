// Blocks of random words, and dropout, vectorized with run-time dispatch.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_RANDOM_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_RANDOM_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::simd {

// words[4 i, 4 i + 4) = PhiloxBlock(seed, stream, block + i) for i < n.
void PhiloxBlocks(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t* words);

// out[i] = words[i] / 2^8 >= threshold ? x[i] * scale : 0.
void Dropout(DType dtype, const void* x, const uint32_t* words, uint32_t threshold, double scale,
             void* out, int64_t n);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_RANDOM_SIMD_H_
