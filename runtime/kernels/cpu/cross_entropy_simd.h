// Cross-entropy on rows of logits of one float type, vectorized with run-time dispatch; statistics
// are f32 (f64 for f64).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

// Where a row's target lies among its columns, if it does.
inline constexpr int64_t kElsewhere = -1;  // another shard has it
inline constexpr int64_t kIgnored = -2;    // the row counts nowhere

// stats[3 r], stats[3 r + 1] = (max, sum of exp(x - max)) of row r; (-inf, 0) for no elements.
void MaxAndSumExp(RowShape shape, InputRows logits, void* stats);
// dlogits = (exp(logits - lse[r]) - onehot(target[r])) * dloss[r]; zeros where the row is ignored.
void CrossEntropyGrad(RowShape shape, InputRows logits, const int64_t* target, const void* lse,
                      const void* dloss, void* dlogits);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_
