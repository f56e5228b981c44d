// Attention's definition as an operator.
#ifndef DTENSOR_ATTENTION_ATTENTION_OP_H_
#define DTENSOR_ATTENTION_ATTENTION_OP_H_

#include "absl/status/statusor.h"
#include "dtensor/attention/attention.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

extern const OpDef kAttentionOp;

// Attention's arguments as attributes. `mesh` has the axes that the options name. Errors:
// kInvalidArgument for an axis that it lacks.
absl::StatusOr<Attrs> AttentionAttrs(const AttentionOptions& options, const DeviceMesh& mesh,
                                     bool backward);

}  // namespace dtensor::internal

#endif  // DTENSOR_ATTENTION_ATTENTION_OP_H_
