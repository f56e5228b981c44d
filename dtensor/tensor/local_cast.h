// A tensor in another type on every rank of the world, also on those that are not on its mesh.
#ifndef DTENSOR_TENSOR_LOCAL_CAST_H_
#define DTENSOR_TENSOR_LOCAL_CAST_H_

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// What Cast() gives, for those who load, save and set up what some ranks have no elements of, where
// operators are refused: each rank converts its own. `x` itself where it has the type. Not
// recorded, and no communication. Errors: the operand's; kInvalidArgument where it is Partial
// (Redistribute it first: the sum of rounded terms is not the rounded sum); failures.
TensorOr LocalCast(const TensorOr& x, DType dtype);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LOCAL_CAST_H_
