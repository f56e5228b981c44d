// Results of attention over some of the keys each, joined.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MERGE_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MERGE_INL_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/attention_tile-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// One part: both wide.
struct MergePart {
  AttentionOperand o, lse;
};

inline int64_t RowsOf(const AttentionSizes& sizes) {
  return sizes.batch * sizes.q_heads * sizes.q_rows;
}

// Results over parts of the keys: parts.size of them, of which parts[p] is one.
template <typename Parts>
struct MergePass {
  AttentionSizes sizes;
  Parts parts;
  MergePart to;
};

namespace internal {

// A warp for each row. o and lse may be one part's: the lanes have read it before they write.
template <typename Out, typename Parts>
__global__ void MergeKernel(const __grid_constant__ MergePass<Parts> a) {
  using T = Compute<Out>;
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  const AttentionSizes& sizes = a.sizes;
  const Parts& parts = a.parts;
  ForEachRow<kWarp>(sizes.batch * sizes.q_heads * sizes.q_rows, [&](int64_t i, int lane) {
    const int64_t row = i % sizes.q_rows, y = i / sizes.q_rows;
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const auto lse_of = [&](int64_t p) {
      return *TileRows<T>(parts[p].lse, batch, head, row, 1).data;
    };
    T top = kNone, sum = 0;
    for (int64_t p = 0; p < parts.size; ++p) top = lse_of(p) > top ? lse_of(p) : top;
    const auto weight_of = [&](int64_t p) {
      const T lse = lse_of(p);
      return lse == kNone ? T{0} : exp(lse - top);
    };
    for (int64_t p = 0; p < parts.size; ++p) sum += weight_of(p);
    auto* const o = const_cast<Out*>(TileRows<Out>(a.to.o, batch, head, row, 1).data);
    for (int64_t f = lane; f < sizes.dim; f += kWarp) {
      T value = 0;
      for (int64_t p = 0; p < parts.size; ++p) {
        const T weight = sum == 0 ? T{0} : weight_of(p) / sum;
        if (weight == 0) continue;  // it may hold anything
        value = fma(weight, TileRows<T>(parts[p].o, batch, head, row, 1).data[f], value);
      }
      o[f] = Round<Out>(value);
    }
    __syncwarp();
    auto* const lse = const_cast<T*>(TileRows<T>(a.to.lse, batch, head, row, 1).data);
    if (lane == 0) *lse = sum == 0 ? kNone : top + log(sum);
  });
}

}  // namespace internal

// `to` is all `parts`, in their order.
template <typename Parts>
absl::Status MergeParts(Device& device, const char* kernel, const AttentionSizes& sizes,
                        const Parts& parts, const MergePart& to) {
  return VisitFloat(sizes.out_dtype, [&](auto t) {
    return LaunchRows<kWarp>(device, kernel, RowsOf(sizes),
                             internal::MergeKernel<decltype(t), Parts>,
                             MergePass<Parts>{sizes, parts, to});
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_MERGE_INL_H_
