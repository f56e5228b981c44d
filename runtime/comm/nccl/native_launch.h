// NCCL's own collectives for an exchange, in as few NCCL groups as the staging allows, since NCCL
// launches each group as one.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_NATIVE_LAUNCH_H_
#define DTENSOR_RUNTIME_COMM_NCCL_NATIVE_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/nccl/carried_call.h"
#include "dtensor/runtime/comm/nccl/carry_schedule.h"

namespace dtensor {

// Launches them, and adds to `bytes` what NCCL was told to receive from other ranks, including
// terms of sums. Requires: all reductions are sums of floats.
absl::Status LaunchNative(const CarriedCall& call, absl::Span<const CarriedCollective> collectives,
                          int64_t& bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NATIVE_LAUNCH_H_
