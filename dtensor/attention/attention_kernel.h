// What a rank does in attention, once the rule has said where its operands are: a ring where the
// same axes split both sequences; parts of the keys, merged, where axes split the keys alone; else
// the kernel. For attention.cc.
#ifndef DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
#define DTENSOR_ATTENTION_ATTENTION_KERNEL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// `scale` 0: 1/sqrt(d); `dropout`: the rate; the seed comes with each call. Requires: a decision on
// q, k and v of kAttentionOp's rule. Errors: as RingSchedule::Create.
absl::StatusOr<std::shared_ptr<const OpState>> PrepareAttention(const Decision& decision, int rank,
                                                                const AttentionMask& mask,
                                                                double scale, double dropout);

// Results: o and lse. Requires: the state that PrepareAttention made.
absl::Status AttentionForward(const OpCall& call);
absl::Status AttentionBackward(const GradCall& call);

}  // namespace dtensor::internal

#endif  // DTENSOR_ATTENTION_ATTENTION_KERNEL_H_
