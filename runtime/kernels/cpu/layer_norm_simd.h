// LayerNorm on rows of one float type, vectorized with run-time dispatch; conventions of
// norm_simd.h.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_LAYER_NORM_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_LAYER_NORM_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

// What a row's gradient needs besides x and dy.
struct LayerNormGradRows {
  const void *weight, *mean, *rstd;
};

// The moments of a row or of a part of it.
struct Moments {
  double count = 0, mean = 0;
  double squares = 0;  // of x - mean, added up
};
void RowMoments(RowShape shape, InputRows x, Moments* moments);
// moments: of all shards combined, or null.
void LayerNorm(RowShape shape, InputRows x, const void* weight, const void* bias, double eps,
               const Moments* moments, void* y, void* mean, void* rstd);
// sums[2 r + i] = (sum(dy * weight), sum(dy * weight * xhat)).
void LayerNormGradSums(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                       void* sums);
// sums: of all shards combined, or null. Adds to dparameters, which holds n sums for weight and
// then n for bias.
void LayerNormGrad(RowShape shape, InputRows x, LayerNormGradRows rows, InputRows dy,
                   const void* sums, int64_t total, void* dx, void* dparameters);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_LAYER_NORM_SIMD_H_
