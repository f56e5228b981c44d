// Statistics of P shards on a GPU, merged in ascending order, so that every rank gets the same
// bits.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SHARD_STATS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SHARD_STATS_INL_H_

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/norm_args.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

// The k-th of kWidth statistics of a row, added up over shards.
template <int kWidth, typename C>
__device__ C AddShards(const C* stats, int64_t shards, int64_t rows, int64_t row, int k) {
  C sum = 0;
  for (int64_t p = 0; p < shards; ++p) sum += stats[(p * rows + row) * kWidth + k];
  return sum;
}
template <int kWidth, typename C>
__device__ C AddShards(const ShardStatsInput& stats, int64_t row, int k) {
  return AddShards<kWidth>(static_cast<const C*>(stats.data), stats.shards, stats.rows, row, k);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SHARD_STATS_INL_H_
