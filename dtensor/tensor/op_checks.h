// What dispatch and the tape ask of an operator, which may be a stranger's: that its definition is
// whole, that its functions keep what op.h says, and that a gradient can pass. Errors name the
// operator. For dispatch.cc, autograd.cc, tape.cc and distributed_tensor.cc only.
#ifndef DTENSOR_TENSOR_OP_CHECKS_H_
#define DTENSOR_TENSOR_OP_CHECKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

// Errors: kInvalidArgument for no operands, or more than a rule may have.
absl::Status CheckOperandCount(const OpDef& op, size_t operands);
// Errors: kInvalidArgument for an operator without a rule or a forward.
absl::Status CheckOpDef(const OpDef& op);
// Errors: kInvalidArgument unless they are of the type that the operator names.
absl::Status CheckAttrs(const OpDef& op, AttrsView attrs);
// That the operator has a function for the kind of device on which its operands lie. Errors:
// kUnimplemented, naming operator, operands and device. Requires: op, functions and given are set.
absl::Status CheckHasForward(const Decision& decision, Device::Kind device);
absl::Status CheckHasBackward(const Decision& decision, Device::Kind device);
// That choose_layouts gave nothing, or a layout for each operand. Errors: kInvalidArgument.
absl::Status CheckChoice(const OpDef& op, absl::Span<const Spec* const> operands,
                         const LayoutChoice& choice);
// That a function of the operator set tensors of these specs' local shapes and types. `what` is
// "forward" or "backward". Errors: kInternal.
absl::Status CheckSet(const OpDef& op, absl::string_view what, size_t i, const Tensor& tensor,
                      const Spec& spec);
// That backward read what is saved, and wrote what is wanted. Errors: kInternal.
absl::Status CheckBackward(const GradCall& call, absl::Span<const SpecPtr> gradients);

// Whether going from one layout to another takes the maximum, minimum or product over ranks: the
// gradient belongs to the ranks that hold the winner, which the tape does not know.
bool ReducesByAnotherOpThanSum(const Layout& from, const Layout& to);
// Sets decision.reduces. Requires: its specs are set.
void FindReductions(Decision& decision);
// Errors: kInvalidArgument if an operand of bit mask `wanted` is reduced so, naming it.
absl::Status CheckGradientsPass(const Decision& decision, uint32_t wanted);
// The same of one tensor. `op` is what the user called.
absl::Status NoGradientPasses(absl::string_view op, absl::string_view what, const Spec& from);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_CHECKS_H_
