// Kernels that merge cuDNN's results for a block of keys with the carry of attention's rows.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
#include "dtensor/runtime/kernels/cuda/attention_rows-inl.h"
#include "dtensor/runtime/kernels/cuda/attention_step-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// The results of a block of keys: each row's o, divided by its sum, and lse, natural log.
struct BlockResult {
  AttentionOperand o;
  const float* lse;  // [batch, q_heads, q_rows]
};

namespace internal {

struct JoinPass {
  AttentionSizes sizes;
  AttentionOperands operands;
  BlockResult block;
};

// One warp per row. A block's result is itself a carry: its o, with a maximum of lse and a sum of
// 1. o may be the carry's, lse may be max or sum: each lane reads an element before it writes it,
// and all have read the statistics before one writes them.
template <typename Block, typename Out>
__global__ void JoinKernel(JoinPass a) {
  const AttentionSizes& sizes = a.sizes;
  const AttentionOperands& x = a.operands;
  ForEachRow<kWarp>(sizes.batch * sizes.q_heads * sizes.q_rows, [&](int64_t i, int lane) {
    const RowPlace at = PlaceOfRow(i, sizes.q_heads, sizes.q_rows);
    const float block_max = a.block.lse[i] * static_cast<float>(kLog2E);
    float max = block_max, sum = 1, kept = 0, weight = 1;
    if (!sizes.first) {
      const float carried = *RowAt<float>(x.max, at);
      max = carried > block_max ? carried : block_max;
      kept = exp2(carried - max);
      weight = exp2(block_max - max);
      sum = fma(*RowAt<float>(x.sum, at), kept, weight);
    }
    __syncwarp();
    const float factor = sizes.last ? 1 / sum : 1;
    const auto* const block = RowAt<const Block>(a.block.o, at);
    auto* const carry = sizes.carried ? RowAt<float>(x.carry, at) : nullptr;
    for (int64_t f = lane; f < sizes.dim; f += kWarp) {
      float value = weight * Widen(block[f]);
      if (!sizes.first) value = fma(carry[f], kept, value);
      if (sizes.last) {
        RowAt<Out>(x.o, at)[f] = Round<Out>(value * factor);
      } else {
        carry[f] = value;
      }
    }
    if (lane != 0) return;
    if (sizes.last) {
      *RowAt<float>(x.lse, at) = static_cast<float>(kLn2) * (max + log2(sum));
    } else {
      *RowAt<float>(x.max, at) = max;
      *RowAt<float>(x.sum, at) = sum;
    }
  });
}

}  // namespace internal

// Writes to the carry, or to the results, depending on sizes.first and last (attention.h).
inline absl::Status JoinBlock(Device& device, const char* kernel, const AttentionSizes& sizes,
                              const AttentionOperands& operands, const BlockResult& block) {
  const internal::JoinPass pass = {sizes, operands, block};
  return internal::VisitNarrow(sizes.dtype, [&](auto b) {
    return internal::VisitResult(sizes.out_dtype, [&](auto o) {
      return LaunchRows<kWarp>(device, kernel, sizes.batch * sizes.q_heads * sizes.q_rows,
                               internal::JoinKernel<decltype(b), decltype(o)>, pass);
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_
