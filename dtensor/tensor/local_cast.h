// LocalCast: converts a tensor's type on any rank, even on ranks that are not on its mesh.
#ifndef DTENSOR_TENSOR_LOCAL_CAST_H_
#define DTENSOR_TENSOR_LOCAL_CAST_H_

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Returns what Cast() returns, each rank converting its own shard, without a dispatch decision: for
// code that loads, saves and sets up tensors. Returns an alias (Detach) if `x` has the type
// already. Not recorded; no communication. Errors: the operand's; kInvalidArgument if it is Partial
// (Redistribute it first: the sum of rounded terms is not the rounded sum); failures.
TensorOr LocalCast(const TensorOr& x, DType dtype);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LOCAL_CAST_H_
