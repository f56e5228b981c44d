// Checks and dispatch of the dimensions of reductions.
#ifndef DTENSOR_OPS_REDUCED_DIMS_H_
#define DTENSOR_OPS_REDUCED_DIMS_H_

#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// Calls `op`, whose attributes are ReduceAttrs. Without dims, returns x itself. Errors: as
// Dispatch; for a dimension that x lacks, and one that is given twice.
TensorOr DispatchReduction(const OpDef& op, const TensorOr& x, absl::Span<const int> dims);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_OPS_REDUCED_DIMS_H_
