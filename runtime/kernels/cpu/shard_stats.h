// Statistics of P shards, one shard after the other, for kernels along a sharded dimension. They
// are merged in ascending order, so that every rank gets the same bits.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_SHARD_STATS_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_SHARD_STATS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace dtensor::kernels::cpu {

// [shards, rows, width].
template <typename C>
struct ShardStats {
  const C* data;
  int64_t shards, rows, width;
  const C* At(int64_t shard, int64_t row) const { return data + (shard * rows + row) * width; }
};

// exp(x - max) added up over a row: the sum is relative to max, so that it cannot overflow.
template <typename C>
struct SumExp {
  C max, sum;
};

// The first two of each shard's statistics are a SumExp, (-inf, 0) for no elements.
template <typename C>
SumExp<C> MergeSumExp(const ShardStats<C>& stats, int64_t row) {
  SumExp<C> all = {-std::numeric_limits<C>::infinity(), 0};
  for (int64_t p = 0; p < stats.shards; ++p) all.max = std::max(all.max, stats.At(p, row)[0]);
  for (int64_t p = 0; p < stats.shards; ++p) {
    const C* shard = stats.At(p, row);
    // A shard without elements holds -inf, and so does every shard of a row of -inf.
    all.sum += shard[0] == all.max ? shard[1] : std::exp(shard[0] - all.max) * shard[1];
  }
  return all;
}

// Sums over shards, [rows, width].
template <typename C>
std::vector<C> AddShards(const ShardStats<C>& stats) {
  const int64_t n = stats.rows * stats.width;
  std::vector<C> sums(n, 0);
  for (int64_t p = 0; p < stats.shards; ++p) {
    const C* shard = stats.data + p * n;
    for (int64_t i = 0; i < n; ++i) sums[i] += shard[i];
  }
  return sums;
}

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_SHARD_STATS_H_
