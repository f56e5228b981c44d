// Merges results of attention, each over some of the keys.
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

// One part's results, both in the accumulator type.
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

// One warp per row. Each lane computes the weight of a part; then the lanes add up features of all
// parts. o and lse may be those of one part: lanes read before they write.
template <typename Out, typename Parts>
__global__ void MergeKernel(const __grid_constant__ MergePass<Parts> a) {
  using T = Compute<Out>;
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  constexpr int kFeaturesOfLane = 4, kPartsAhead = 8;  // what is read together
  const AttentionSizes& sizes = a.sizes;
  const Parts& parts = a.parts;
  ForEachRow<kWarp>(sizes.batch * sizes.q_heads * sizes.q_rows, [&](int64_t i, int lane) {
    const int64_t row = i % sizes.q_rows, y = i / sizes.q_rows;
    const int64_t batch = y / sizes.q_heads, head = y % sizes.q_heads;
    const auto lse_of = [&](int64_t p) {
      return *TileRows<T>(parts[p].lse, batch, head, row, 1).data;
    };
    const auto larger = [](T a, T b) { return a > b ? a : b; };  // b is never NaN
    T top = kNone, sum = 0;
    for (int64_t p = lane; p < parts.size; p += kWarp) top = larger(lse_of(p), top);
    top = FoldLanes<kWarp>(top, larger);
    const auto weight_of = [&](int64_t p) {
      const T lse = lse_of(p);
      return lse == kNone ? T{0} : exp(lse - top);
    };
    for (int64_t p = lane; p < parts.size; p += kWarp) sum += weight_of(p);
    sum = SumLanes<kWarp>(sum);
    auto* const o = const_cast<Out*>(TileRows<Out>(a.to.o, batch, head, row, 1).data);
    for (int64_t feature = lane; feature - lane < sizes.dim; feature += kFeaturesOfLane * kWarp) {
      T values[kFeaturesOfLane] = {};
      for (int64_t first = 0; first < parts.size; first += kWarp) {
        // 0 for parts that do not exist, even if the sum is NaN.
        const bool is_there = first + lane < parts.size && sum != 0;
        const T own = is_there ? weight_of(first + lane) / sum : T{0};
        for (int ahead = 0; ahead < kWarp && first + ahead < parts.size; ahead += kPartsAhead) {
          T weights[kPartsAhead], next[kPartsAhead][kFeaturesOfLane] = {};
#pragma unroll
          for (int k = 0; k < kPartsAhead; ++k) {
            weights[k] = __shfl_sync(0xffffffff, own, ahead + k);
            if (weights[k] == 0) continue;  // this part's o may hold anything, even NaN
            const T* const from =
                TileRows<T>(parts[first + ahead + k].o, batch, head, row, 1).data + feature;
#pragma unroll
            for (int f = 0; f < kFeaturesOfLane; ++f) {
              if (feature + f * kWarp < sizes.dim) next[k][f] = from[f * kWarp];
            }
          }
#pragma unroll
          for (int k = 0; k < kPartsAhead; ++k) {
#pragma unroll
            for (int f = 0; f < kFeaturesOfLane; ++f) {
              values[f] = fma(weights[k], next[k][f], values[f]);
            }
          }
        }
      }
      for (int f = 0; f < kFeaturesOfLane; ++f) {
        if (feature + f * kWarp < sizes.dim) o[feature + f * kWarp] = Round<Out>(values[f]);
      }
    }
    __syncwarp();
    auto* const lse = const_cast<T*>(TileRows<T>(a.to.lse, batch, head, row, 1).data);
    if (lane == 0) *lse = sum == 0 ? kNone : top + log(sum);
  });
}

}  // namespace internal

// Sets `to` to the merged `parts`, in their order.
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
