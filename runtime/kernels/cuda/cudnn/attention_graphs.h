// Attention as graphs that cuDNN has fused kernels for: the operations, their order and which
// tensors are in memory are those by which it recognizes them.
//
// Tensors are [batch, heads, rows, dim] here; k, v and what is transposed are described by strides.
// Query head h reads key head h / (q_heads / kv_heads).
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_GRAPHS_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_GRAPHS_H_

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/cudnn/attention_key.h"
#include "dtensor/runtime/kernels/cuda/cudnn/graph.h"

namespace dtensor::kernels::cuda {

// Ids of tensors in memory, then of scalars. The statistics, lse (natural log) and `kDelta`, which
// backward computes for itself, are f32 [batch, q_heads, q_rows], row-major.
enum AttentionId : int64_t {
  kIdQ = 1,
  kIdK,
  kIdV,
  kIdO,
  kIdLse,
  kIdDout,
  kIdDelta,
  kIdDq,
  kIdDk,
  kIdDv,
  kIdScale,
  kIdOne,
  kIdHidden  // 1, and -inf: the score of what is not seen
};

Graph AttentionForwardGraph(const AttentionKey& key);
Graph AttentionBackwardGraph(const AttentionKey& key);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_GRAPHS_H_
