// What cuDNN's plan for a piece of attention depends on.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_KEY_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_KEY_H_

#include <array>
#include <cstdint>
#include <utility>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor::kernels::cuda {

// Of batch, head and row, in elements.
using AttentionStrides = std::array<int64_t, 3>;

// What a graph depends on: with equal keys, two are one.
struct AttentionKey {
  bool backward = false;
  bool causal = false;  // row i sees keys j <= i; else all
  // Of all operands and results but the statistics. Results in f32 have engines, says cuDNN 9.19,
  // and come out wrong, or not at all (H200, 2026-11-26).
  DType dtype = DType::kBF16;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_rows = 0, keys = 0, dim = 0;
  AttentionStrides q = {}, k = {}, v = {}, o = {};
  AttentionStrides dout = {}, dq = {}, dk = {}, dv = {};  // backward

  int64_t rows() const { return batch * q_heads * q_rows; }
  friend bool operator==(const AttentionKey&, const AttentionKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AttentionKey& key) {
    return H::combine(std::move(h), key.backward, key.causal, key.dtype, key.batch, key.q_heads,
                      key.kv_heads, key.q_rows, key.keys, key.dim, key.q, key.k, key.v, key.o,
                      key.dout, key.dq, key.dk, key.dv);
  }
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_KEY_H_
