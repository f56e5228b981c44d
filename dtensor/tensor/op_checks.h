// Checks that dispatch and the tape make of an operator, which a user may have written: that its
// definition is complete, that its functions do what op.h says, and that gradients can pass. Errors
// name the operator.
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

// Errors: kInvalidArgument for no operands, or more than OpRule::kMaxOperands.
absl::Status CheckOperandCount(const OpDef& op, size_t operands);
// Errors: kInvalidArgument for an operator without a rule or a forward.
absl::Status CheckOpDef(const OpDef& op);
// Errors: kInvalidArgument if the attributes are not of the type that the operator names.
absl::Status CheckAttrs(const OpDef& op, AttrsView attrs);
// Checks that the operator has a function for the kind of device that holds its operands. Errors:
// kUnimplemented, naming operator, operands and device. Requires: op, functions and given are set.
absl::Status CheckHasForward(const Decision& decision, Device::Kind device);
absl::Status CheckHasBackward(const Decision& decision, Device::Kind device);
// Checks that choose_layouts returned no layouts, or one for each operand. Errors:
// kInvalidArgument.
absl::Status CheckChoice(const OpDef& op, absl::Span<const Spec* const> operands,
                         const LayoutChoice& choice);
// Checks that a function of the operator has set `tensor`, number i, with the local shape and type
// of `spec`. `what` is "forward" or "backward". Errors: kInternal.
absl::Status CheckSet(const OpDef& op, absl::string_view what, size_t i, const Tensor& tensor,
                      const Spec& spec);
// Checks that backward has read only what is saved, and written all that is wanted. Errors:
// kInternal.
absl::Status CheckBackward(const GradCall& call, absl::Span<const SpecPtr> gradients);
// Fails the world with the error of a function of the operator, which the message names. Returns
// the world's failure.
absl::Status FailIn(Context& context, const OpDef& op, const absl::Status& error);

// Whether redistributing from one layout to the other reduces by max, min or product. Such a
// reduction has no gradient here: that of a max, for example, belongs to the rank that holds the
// maximum, which the tape does not know.
bool ReducesByAnotherOpThanSum(const Layout& from, const Layout& to);
// Sets decision.reduces. Requires: its specs are set.
void FindReductions(Decision& decision);
// `wanted`: bit i says that a gradient of operand i is wanted. Errors: kInvalidArgument, naming it,
// if such an operand or a result is reduced by max, min or product.
absl::Status CheckGradientsPass(const Decision& decision, uint32_t wanted);
// That error, for one tensor. `op` is what the user called.
absl::Status NoGradientPasses(absl::string_view op, absl::string_view what, const Spec& from);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_CHECKS_H_
