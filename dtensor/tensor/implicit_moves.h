// Redistributions that nobody asked for: those that dispatch makes by itself, because an operator's
// rule wants an operand elsewhere. For dispatch.cc and decide.cc.
#ifndef DTENSOR_TENSOR_IMPLICIT_MOVES_H_
#define DTENSOR_TENSOR_IMPLICIT_MOVES_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {

// Errors: kInvalidArgument where all of them together, each with its busiest rank's bytes, are more
// than the Context's max_implicit_bytes, naming the operator, the operands, their layouts, what
// moves, and the remedy. From the decision alone: it is the same on every rank, and whatever was
// moved before is not looked at.
absl::Status CheckImplicit(Context& context, const Decision& decision);

// Tells the Context's notice, on the first rank of the mesh.
void NoticeImplicit(Context& context, const Decision& decision);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_IMPLICIT_MOVES_H_
