// Dispatch: runs an operator on distributed tensors. If (operator, Specs, attributes) were seen
// before, deciding what to do is one look-up.
#ifndef DTENSOR_TENSOR_DISPATCH_H_
#define DTENSOR_TENSOR_DISPATCH_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {

// Runs `op` and returns its only result. Collective if operands must move. On a rank that is not on
// the operands' mesh it only makes the result, without elements. Errors: an operand's
// error; kInvalidArgument for undefined operands, operands of two Contexts or of types that the
// operator does not take, no operand or more than OpRule::kMaxOperands, what the rule or op.check
// refuses, attributes of another type than op.attrs, an incomplete OpDef; if the call is recorded,
// also for an operand that wants a gradient and must be reduced by max, min or product;
// kUnimplemented if the OpDef has no forward for the Context's device, or no backward for it and
// the call is recorded (see OpFunctions); failures.
TensorOr Dispatch(const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs = {},
                  const CallValues& values = {});
// The same for operators with several results.
absl::StatusOr<absl::InlinedVector<DistributedTensor, 2>> DispatchAll(
    const OpDef& op, absl::Span<const TensorOr* const> operands, AttrsView attrs = {},
    const CallValues& values = {});

// Returns what Dispatch would decide, without running anything: for explanations and tests.
// Requires: operands are defined and of one Context. Errors: kInvalidArgument as Dispatch.
absl::StatusOr<DecisionPtr> Decide(const OpDef& op, absl::Span<const DistributedTensor> operands,
                                   AttrsView attrs = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DISPATCH_H_
