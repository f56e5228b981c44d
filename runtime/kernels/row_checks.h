// Checks for tensors of kernels that work along the last dimension.
#ifndef DTENSOR_RUNTIME_KERNELS_ROW_CHECKS_H_
#define DTENSOR_RUNTIME_KERNELS_ROW_CHECKS_H_

#include <cstdint>
#include <initializer_list>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/norm_args.h"

namespace dtensor {
namespace kernels::internal {

// x: [..., n] of floats; out: the same shape and type, row-major.
inline void CheckRows(const Tensor& x, const Tensor& out) {
  DT_CHECK(x.ndim() >= 1 && IsFloat(x.dtype()));
  DT_CHECK(out.shape() == x.shape() && out.dtype() == x.dtype() && out.is_contiguous());
}

// stats: [..., more] of `dtype` for x of [..., n].
inline void CheckRowStats(const Tensor& x, const Tensor& stats, DType dtype,
                          std::initializer_list<int64_t> more = {}) {
  DT_CHECK(x.ndim() >= 1 && IsFloat(x.dtype()) && stats.dtype() == dtype);
  Dims want(x.shape().begin(), x.shape().end() - 1);
  want.insert(want.end(), more.begin(), more.end());
  DT_CHECK(stats.shape() == want);
}
inline void CheckRowStats(const Tensor& x, const Tensor& stats,
                          std::initializer_list<int64_t> more = {}) {
  CheckRowStats(x, stats, AccumulatorOf(x.dtype()), more);
}

// As CheckRowStats, for P shards: [P, ..., more], P >= 1.
inline void CheckShardStats(const Tensor& x, const Tensor& stats, DType dtype,
                            std::initializer_list<int64_t> more = {}) {
  DT_CHECK(stats.ndim() >= 1 && stats.size(0) >= 1 && stats.dtype() == dtype);
  Dims want(x.shape().begin(), x.shape().end() - 1);
  want.insert(want.begin(), stats.size(0));
  want.insert(want.end(), more.begin(), more.end());
  DT_CHECK(stats.shape() == want);
}
inline void CheckShardStats(const Tensor& x, const Tensor& stats,
                            std::initializer_list<int64_t> more = {}) {
  CheckShardStats(x, stats, AccumulatorOf(x.dtype()), more);
}

// A vector of x's type and of the size of its last dimension.
inline void CheckWeight(const Tensor& x, const Tensor& weight) {
  DT_CHECK(weight.ndim() == 1 && weight.size(0) == x.shape().back());
  DT_CHECK(weight.dtype() == x.dtype());
}

// The number of rows of x: [..., n].
inline int64_t NumRows(const Tensor& x) {
  return NumElements(absl::MakeConstSpan(x.shape()).first(x.ndim() - 1));
}

// The row-major `stats` as flat arguments; null if x's rows are complete.
inline ShardStatsInput ShardStatsOf(const Tensor& x, const Tensor* stats, DType dtype,
                                    std::initializer_list<int64_t> more = {}) {
  if (stats == nullptr) return {};
  CheckShardStats(x, *stats, dtype, more);
  DT_CHECK(stats->is_contiguous());
  return {stats->raw(), stats->size(0), NumRows(x)};
}
inline ShardStatsInput ShardStatsOf(const Tensor& x, const Tensor* stats,
                                    std::initializer_list<int64_t> more = {}) {
  return ShardStatsOf(x, stats, AccumulatorOf(x.dtype()), more);
}

}  // namespace kernels::internal
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ROW_CHECKS_H_
