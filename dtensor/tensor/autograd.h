// Gradients: an eager tape, walked backward in reverse order of creation, which is the same on
// every rank.
//
// A redistribution is the identity, so it leaves no mark on the tape: the redistributed tensor's
// gradient is the source's. Contributions to one tensor may arrive in different layouts; they are
// summed in those, and moved only when an operator needs them: so the gradients of q, k and v are
// added before one reduce-scatter, and a parameter's gradient stays Partial until ReduceGradients.
#ifndef DTENSOR_TENSOR_AUTOGRAD_H_
#define DTENSOR_TENSOR_AUTOGRAD_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

// d loss / d leaf, added to grad() of every leaf that requires gradients. Collective. `loss` has
// one element and a floating type; a loss that is Partial stands for its sum. The tape is consumed.
// Errors, all before anything runs: kInvalidArgument for an undefined loss, another shape or type,
// or one that is Partial by another op than sum or avg; kFailedPrecondition when nothing was
// recorded, naming the operator without a backward if one led to the loss; when an operator that
// led to the loss was walked by an earlier Backward (add the losses and call it once), or when a
// tensor that backward needs was written to after an operator read it. Then failures. Gradients of
// leaves are stored at the end, all or none.
absl::Status Backward(const TensorOr& loss);

// Brings each leaf's gradient to the leaf's own layout: those over the same axes in one collective.
// Leaves without a gradient are passed over. Optimizers require it. Collective: the same leaves in
// the same order on every rank. Errors: kInvalidArgument for an undefined leaf, or leaves of two
// Contexts, before anything moves; failures.
absl::Status ReduceGradients(absl::Span<const DistributedTensor> leaves);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_AUTOGRAD_H_
