// Reductions over dimensions of one rank's local tensor, in a fixed order: the same bits every
// time. The order depends on sizes and strides: reduced dimensions are traversed as they lie in
// memory, whatever their order in the shape.
#ifndef DTENSOR_RUNTIME_KERNELS_REDUCE_H_
#define DTENSOR_RUNTIME_KERNELS_REDUCE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// out = x reduced over `dims` (kept as size 1 or dropped: only out's element count matters), in
// AccumulatorOf(dtype). Reducing no elements gives the identity. x: any strides; out: row-major.
// op: kSum, kMax, kMin or kProduct.
absl::Status Reduce(Device& device, ReduceOp op, const Tensor& x, absl::Span<const int> dims,
                    const Tensor& out);
// out = sum of x over `dims` / count, divided before it is rounded to out's type. Floats.
absl::Status Mean(Device& device, const Tensor& x, absl::Span<const int> dims, double count,
                  const Tensor& out);
// out (f32 scalar; f64 for f64) = sum of squares of all elements; f32 inputs are summed in f64.
absl::Status SumOfSquares(Device& device, const Tensor& x, const Tensor& out);
// counts[i] = how many of the ids are i; others are not counted. ids: i32 or i64, any strides;
// counts: [n], f32 or f64, row-major. Counts are whole numbers until each is rounded once.
absl::Status Bincount(Device& device, const Tensor& ids, const Tensor& counts);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_REDUCE_H_
