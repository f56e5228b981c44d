// The innermost loop of a reduction: contiguous rows combined element by element, vectorized.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_ROW_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_ROW_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace dtensor {

// dst[i] = scale * (rows[0][i] op rows[1][i] op ...), i < n, in the order listed, from rows of type
// `in` to `out`. Floats are combined and scaled in AccumulatorOf(in) and rounded once; sums and
// products of integers wrap; max and min of floats are NaN where any row is. kAvg adds: the
// division is `scale`. `stream`: by streaming stores; FinishStores() (streaming.h) before another
// thread may read dst. `next`: as in StreamCopy(), for each row, or null.
//
// Requires: ConvertsOnTheWay(in, out); at least one row; scale == 1 unless floats; kMax or kMin for
// bool; dst aligned to its elements. dst may be one of the rows, if in == out.
void ReduceRow(DType in, DType out, ReduceOp op, double scale,
               absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n,
               bool stream = false, const std::byte* const* next = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_REDUCE_ROW_H_
