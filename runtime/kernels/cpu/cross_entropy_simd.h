// Cross-entropy on rows of logits of one float type, vectorized with run-time dispatch; statistics
// are f32 (f64 for f64).
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cpu/row_shape.h"

namespace dtensor::kernels::simd {

// The column of a row's target, or one of these.
inline constexpr int64_t kElsewhere = -1;  // another shard has it
inline constexpr int64_t kIgnored = -2;    // the row is skipped

// What is subtracted from the probabilities: from the target's, and from each.
struct CrossEntropyWeights {
  double target, each;
};

// The first two of each row's `width` stats = (max, sum of exp(x - max)); (-inf, 0) for no
// elements.
void MaxAndSumExp(RowShape shape, InputRows logits, int64_t width, void* stats);
// Completes each row's `width` stats, of which the first is max: the fourth becomes the sum of
// x - max, the fifth n.
void SumBelowMax(RowShape shape, InputRows logits, int64_t width, void* stats);
// p - weights.each - weights.target * onehot(target[r]), times dloss[r], where p =
// exp(logits - max[r] - log_sum[r]); zeros where the row is ignored. Rows of dlogits have `width`
// elements: zeros from n on.
void CrossEntropyGrad(RowShape shape, InputRows logits, const int64_t* target,
                      CrossEntropyWeights weights, const void* max, const void* log_sum,
                      const void* dloss, int64_t width, void* dlogits);

}  // namespace dtensor::kernels::simd

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_CROSS_ENTROPY_SIMD_H_
