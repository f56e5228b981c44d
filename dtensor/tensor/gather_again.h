// RedistributeForUse: redistributions that Backward repeats, so that their results need not be
// kept. RedistributeKept: redistributions to another mesh whose elements are kept there.
#ifndef DTENSOR_TENSOR_GATHER_AGAIN_H_
#define DTENSOR_TENSOR_GATHER_AGAIN_H_

#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Returns x.Redistribute(layout, {.on_use = true}). If that gathers, so that ranks hold more of x
// than before, recorded operators that read the result save x instead of the result. Backward
// gathers x again, once for all operators that read x in the same layout, and frees the result
// after the last of them. So a rank keeps only its shard, at the price of one more collective;
// values and gradients have the same bits.
//
// The gathered memory is still kept if an operator saves a view of the result, or reads the result
// after it or x was written to. If x is written to between an operator and its Backward, that
// Backward is refused, as for any operand. Errors: as Redistribute; failures.
TensorOr RedistributeForUse(const DistributedTensor& x, const Layout& layout);

// Returns leaf.Redistribute(layout) for a layout on another mesh, for a parameter that modules on
// two meshes read. The elements are kept there as long as the leaf lives and is not written to, so
// a parameter moves once for each step of its optimizer. Each result has a gradient of its own,
// which Backward moves back. Ranks that only send do not wait. Collective: all ranks of both meshes
// call it, also those that have kept the elements.
//
// Every rank that calls this calls BeforeWrite(leaf) for each write, also ranks that are not on the
// leaf's mesh: Optimizer::Step, LoadStateDict and LoadCheckpoint do. So give each rank's optimizer
// all parameters that stages share. Errors: as Redistribute; failures.
TensorOr RedistributeKept(const DistributedTensor& leaf, const Layout& layout);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_AGAIN_H_
