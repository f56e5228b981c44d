// What a rank does in attention, once the rule has placed its operands. If the same axes shard both
// sequences: a ring. If axes shard only the keys: attention to the rank's own keys, and a merge of
// the ranks' results. Else just the kernel. For attention.cc.
#ifndef DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
#define DTENSOR_ATTENTION_ATTENTION_KERNEL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// The dropout seed is not part of the state: it comes with each call. Requires: q, k and v as
// attention's rule places them, and AttentionAttrs. Errors: as RingSchedule::Create.
absl::StatusOr<std::shared_ptr<const OpState>> PrepareAttention(const OpStateRequest& request);

// The results are o and lse. Requires: the state that PrepareAttention made.
absl::Status AttentionForward(const OpCall& call);
absl::Status AttentionBackward(const GradCall& call);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
