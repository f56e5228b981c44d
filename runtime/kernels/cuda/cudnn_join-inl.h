// Kernels that join what cuDNN gives for a block of keys with what attention's rows have.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"
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

struct RowPlace {
  int64_t batch, head, row;
};
__device__ inline RowPlace PlaceOfRow(int64_t i, int64_t heads, int64_t rows) {
  const int64_t y = i / rows;
  return {y / heads, y % heads, i % rows};
}
template <typename T>
__device__ T* RowAt(const AttentionOperand& x, const RowPlace& at) {
  return static_cast<T*>(x.data) + at.batch * x.batch_stride + at.head * x.head_stride +
         at.row * x.row_stride;
}

struct JoinPass {
  AttentionSizes sizes;
  AttentionOperands operands;
  BlockResult block;
};

// A warp for each row. A block's result is a carry itself: its o, with a maximum of lse and a sum
// of 1. o may be the carry's, lse may be max or sum: each lane reads an element before it writes
// it, and all have read the statistics before one writes them.
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

// A gradient's rows, put into others of another type, or added to them.
struct PutPass {
  AttentionOperand from, into;
  int64_t batch, heads, rows, dim;
  bool adds;
};

namespace internal {

template <typename From, typename Into>
__global__ void PutKernel(PutPass a) {
  ForEachRow<kWarp>(a.batch * a.heads * a.rows, [&](int64_t i, int lane) {
    const RowPlace at = PlaceOfRow(i, a.heads, a.rows);
    const auto* const from = RowAt<const From>(a.from, at);
    auto* const into = RowAt<Into>(a.into, at);
    for (int64_t f = lane; f < a.dim; f += kWarp) {
      const float value = Widen(from[f]);
      into[f] = Round<Into>(a.adds ? Widen(into[f]) + value : value);
    }
  });
}

// Call fn(T{}) with the operands' type, of 16 bits; with it, or float.
template <typename Fn>
absl::Status VisitNarrow(DType dtype, Fn fn) {
  return dtype == DType::kBF16 ? fn(BFloat16()) : fn(Float16());
}
template <typename Fn>
absl::Status VisitResult(DType dtype, Fn fn) {
  return dtype == DType::kF32 ? fn(float()) : VisitNarrow(dtype, fn);
}

}  // namespace internal

// Into the carry, or the results: what sizes.first and last say (attention.h).
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

inline absl::Status PutGradient(Device& device, const char* kernel, const PutPass& pass, DType from,
                                DType into) {
  return internal::VisitNarrow(from, [&](auto f) {
    return internal::VisitResult(into, [&](auto t) {
      return LaunchRows<kWarp>(device, kernel, pass.batch * pass.heads * pass.rows,
                               internal::PutKernel<decltype(f), decltype(t)>, pass);
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_JOIN_INL_H_
