// Dispatch: runs an operator on distributed tensors. One look-up by (operator, Specs, attributes).
#ifndef DTENSOR_TENSOR_DISPATCH_H_
#define DTENSOR_TENSOR_DISPATCH_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {

// The single result of `op`. Collective where operands must move.
// Errors: an operand's error; kInvalidArgument for undefined operands, two Contexts, types that the
// op does not take, none or more than OpRule::kMaxOperands, what the rule or op.check refuses,
// attributes of another type than op.attrs, an OpDef that is not whole; where it is recorded, an
// operand that wants a gradient and must be reduced by max, min or product; kUnimplemented where
// the OpDef has no forward for the Context's device, or no backward and the call is recorded;
// failures.
TensorOr Dispatch(const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs = {},
                  const CallValues& values = {});
// For several results.
absl::StatusOr<absl::InlinedVector<DistributedTensor, 2>> DispatchAll(
    const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs = {},
    const CallValues& values = {});

// What Dispatch would decide: for explanation and tests. Nothing runs. Requires: operands are
// defined and of one Context. Errors: kInvalidArgument as Dispatch.
absl::StatusOr<DecisionPtr> Decide(const OpDef& op, absl::Span<const DistributedTensor> operands,
                                   AttrsView attrs = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DISPATCH_H_
