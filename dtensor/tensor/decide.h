// MakeDecision: works out everything that follows from (operator, specs, attributes), once. Only
// for dispatch.cc.
#ifndef DTENSOR_TENSOR_DECIDE_H_
#define DTENSOR_TENSOR_DECIDE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/tensor/attrs.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

// Checks the operator and its operands, solves the rule, and interns all specs. `pinned`: bit i
// says that operand i is moved only if there is no other way. Requires: 1 to OpRule::kMaxOperands
// operands. Errors: those of Dispatch that do not depend on values.
absl::StatusOr<DecisionPtr> MakeDecision(Context& context, const OpDef& op,
                                         absl::Span<const SpecPtr> given, uint32_t pinned,
                                         AttrsView attrs);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DECIDE_H_
