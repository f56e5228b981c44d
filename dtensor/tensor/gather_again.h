// RedistributeForUse: redistributions that Backward makes again in place of keeping their results.
#ifndef DTENSOR_TENSOR_GATHER_AGAIN_H_
#define DTENSOR_TENSOR_GATHER_AGAIN_H_

#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// x.Redistribute(layout, {.on_use = true}). Where that gathers, so that ranks hold more of x than
// before, recorded operators that read the result save x in its place; Backward gathers it again,
// once for all operators that read results of one x in one layout, and frees it after the last of
// them. So a rank keeps its shard, for one more collective; values, gradients included, are the
// same bits.
//
// A view of the result that an operator saves keeps the gathered memory, as does an operator that
// reads the result after it or x was written to. Writing to x between an operator and its Backward
// is refused there, as for any operand. Errors: as Redistribute; failures.
TensorOr RedistributeForUse(const DistributedTensor& x, const Layout& layout);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_AGAIN_H_
