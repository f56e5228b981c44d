// What a rank does in attention, once the rule has said where its operands are: a ring where the
// same axes split both sequences; parts of the keys, merged, where axes split the keys alone; else
// the kernel. For attention.cc.
#ifndef DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
#define DTENSOR_ATTENTION_ATTENTION_KERNEL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// The seed of dropout comes with each call. Requires: q, k and v as attention's rule places them,
// and AttentionAttrs. Errors: as RingSchedule::Create.
absl::StatusOr<std::shared_ptr<const OpState>> PrepareAttention(const OpStateRequest& request);

// Results: o and lse. Requires: the state that PrepareAttention made.
absl::Status AttentionForward(const OpCall& call);
absl::Status AttentionBackward(const GradCall& call);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
