// Helpers for operators that merge statistics of shards instead of gathering an operand.
#ifndef DTENSOR_OPS_SHARD_STATS_H_
#define DTENSOR_OPS_SHARD_STATS_H_

#include <cstdint>
#include <initializer_list>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// For x of shape [..., n], an uninitialized tensor [..., more] of type `dtype`, or of x's
// accumulator type.
inline absl::StatusOr<Tensor> RowStats(Device& device, const Tensor& x, DType dtype,
                                       std::initializer_list<int64_t> more = {}) {
  Dims shape(x.shape().begin(), x.shape().end() - 1);
  shape.insert(shape.end(), more.begin(), more.end());
  return Tensor::Empty(device, dtype, shape);
}
inline absl::StatusOr<Tensor> RowStats(Device& device, const Tensor& x,
                                       std::initializer_list<int64_t> more = {}) {
  return RowStats(device, x, AccumulatorOf(x.dtype()), more);
}

// RankCall::GatherShards for row-major statistics with any number of dimensions, while layouts have
// a maximum.
inline absl::StatusOr<Tensor> GatherStats(const RankCall& call, absl::string_view letters,
                                          const Tensor& stats) {
  DT_ASSIGN_OR_RETURN(const Tensor flat, stats.Reshape({stats.numel()}));
  DT_ASSIGN_OR_RETURN(const Tensor all, call.GatherShards(letters, flat));
  Dims shape = stats.shape();
  shape.insert(shape.begin(), all.size(0));
  return all.Reshape(shape);
}

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_OPS_SHARD_STATS_H_
