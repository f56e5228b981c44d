// A native reduce-scatter, in as many calls as its staging allows.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_REDUCTION_LAUNCH_H_
#define DTENSOR_RUNTIME_COMM_NCCL_REDUCTION_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/nccl/carried_call.h"
#include "dtensor/runtime/comm/nccl/carry_schedule.h"

namespace dtensor {

// Launches it, and adds to `bytes` what NCCL was told to reduce of others'. Requires: sums of
// floats.
absl::Status LaunchReduction(const CarriedCall& call, const CarriedReduction& reduction,
                             int64_t& bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_REDUCTION_LAUNCH_H_
