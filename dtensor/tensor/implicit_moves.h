// Implicit redistributions: those that dispatch inserts because an operator's rule wants an operand
// or a result in another layout. Only for dispatch.cc and decide.cc.
#ifndef DTENSOR_TENSOR_IMPLICIT_MOVES_H_
#define DTENSOR_TENSOR_IMPLICIT_MOVES_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {

// Errors: kInvalidArgument if the bytes of the decision's implicit redistributions, each counted
// for its busiest rank, add up to more than the Context's max_implicit_bytes. The message names the
// operator, the operands, their layouts, what would move, and the remedy. The check looks at the
// decision and the plans of its options alone, so it has the same result on every rank; whether a
// redistribution's result is already there (remembered) makes no difference.
absl::Status CheckImplicit(Context& context, const Decision& decision);

// Reports them to the Context's notice, on the first rank of the mesh.
void NoticeImplicit(Context& context, const Decision& decision);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_IMPLICIT_MOVES_H_
