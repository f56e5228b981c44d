// What maxima and minima need in addition to Reduce (reduce.h): where they are, how gradients are
// divided among ties, the largest of a row, and elements of rows by their indices. On one rank's
// local tensors; conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_EXTREMUM_H_
#define DTENSOR_RUNTIME_KERNELS_EXTREMUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// The position of the largest element along `dim`, in two stages; of ties the first one, and a NaN
// counts as larger than all numbers. x: any type but bool. Stage 1: stats[..., 2] i64 over the
// other dimensions = (a key that is ordered like the values, the global index). `indices` are the
// global indices of x along dim.
absl::Status ArgMaxStats(Device& device, const Tensor& x, int dim, const IndexSet& indices,
                         const Tensor& stats);
// Stage 2, from the stats of all P shards, [P, ..., 2]: out[...] i64, the global index.
absl::Status ArgMaxMerge(Device& device, const Tensor& stats, const Tensor& out);

// count i64 = how many elements of x over `dims` are equal to `extremum`. Both have the shape of x
// without dims; any type but bool.
absl::Status CountTies(Device& device, const Tensor& x, const Tensor& extremum,
                       absl::Span<const int> dims, const Tensor& count);
// dx = dy / count where x equals extremum, else 0; NaN everywhere if count is 0 (the extremum is
// NaN). Floats; extremum, count and dy: as above.
absl::Status ShareAmongTies(Device& device, const Tensor& x, const Tensor& extremum,
                            absl::Span<const int> dims, const Tensor& count, const Tensor& dy,
                            const Tensor& dx);

// The k largest elements of each row of x: [..., n] of any type but bool, in descending order; of
// ties the first one comes first, and a NaN counts as larger than all numbers. values [..., k] of
// x's type, indices [..., k] i64. Requires: 0 <= k <= n.
absl::Status TopK(Device& device, const Tensor& x, int64_t k, const Tensor& values,
                  const Tensor& indices);

// y[..., j] = x[..., indices[..., j]]: x [..., n] of any type, indices [..., k] i64, y [..., k]. An
// index outside [0, n) makes the device fail (kOutOfRange, naming it and n).
absl::Status Take(Device& device, const Tensor& x, const Tensor& indices, const Tensor& y);
// dx[..., i] = the sum of dy[..., j] over j with indices[..., j] = i: added up in ascending order
// of j, accumulated in f32. Floats. Indices outside of [0, n) are passed over.
absl::Status TakeGrad(Device& device, const Tensor& indices, const Tensor& dy, const Tensor& dx);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_EXTREMUM_H_
