// MakeDecision: what is worked out once for (operator, specs, attributes). For dispatch.cc only.
#ifndef DTENSOR_TENSOR_DECIDE_H_
#define DTENSOR_TENSOR_DECIDE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/tensor/attrs.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

// Checks the operator and its operands, asks the rule, and interns all specs. `pinned`: bit i says
// that operand i moves last. Requires: as many operands as a rule may have, at least one. Errors:
// those of Dispatch that do not depend on values.
absl::StatusOr<DecisionPtr> MakeDecision(Context& context, const OpDef& op,
                                         absl::Span<const SpecPtr> given, uint32_t pinned,
                                         AttrsView attrs);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DECIDE_H_
