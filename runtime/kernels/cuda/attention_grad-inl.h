// The parts of attention's gradient kernels: the general ones (attention_grad.cu), and those of
// flash attention (attention_flash_grad.cu).
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_GRAD_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_GRAD_INL_H_

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {

template <typename T>
__device__ const T& StatisticAt(const AttentionOperand& x, const HeadPlace& at, int64_t row) {
  return static_cast<const T*>(
      x.data)[at.batch * x.batch_stride + at.head * x.head_stride + row * x.row_stride];
}

// Writes sums to rows [first, ...) of a gradient, in its type, or adds to them.
template <typename Tiles, typename Sums, typename T = typename Tiles::T>
__device__ void StoreGrad(const StepRule& step, const AttentionOperand& to, int64_t batch,
                          int64_t head, int64_t first, int64_t rows, typename Tiles::T factor,
                          bool adds, int64_t window, Sums& sums) {
  using In = typename Tiles::In;
  const int64_t offset = batch * to.batch_stride + head * to.head_stride;
  T factors[Tiles::kRowsOfLane];
  for (T& each : factors) each = factor;
  const auto put = [&]<typename V>(V* data) {
    PutSums<Tiles>(sums, window, step.sizes.dim, factors, adds, [&](int r) {
      const int64_t row = first + Tiles::RowOf(r);
      return row < rows ? data + offset + row * to.row_stride : nullptr;
    });
  };
  if (step.is_wide()) {
    put(static_cast<T*>(to.data));
  } else {
    put(static_cast<In*>(to.data));
  }
}

// The queries [begin, end) that see some of the keys [key, key + count); the ranges that rows see
// ascend.
struct QueryRange {
  int64_t begin, end;
};
__device__ inline QueryRange QueriesThatSee(const StepRule& step, int64_t key, int64_t count) {
  // The first row for which `passed` holds; it then holds for all later rows.
  const auto first_of = [&](auto passed) {
    int64_t low = 0, high = step.sizes.q_rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (passed(step.seen[middle])) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  return {first_of([&](const SeenKeys& seen) { return seen.end > key; }),
          first_of([&](const SeenKeys& seen) { return seen.begin >= key + count; })};
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_GRAD_INL_H_
