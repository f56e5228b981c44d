// A round of sends and receives: data is packed, sent and received as one NCCL group, and combined.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_ROUND_LAUNCH_H_
#define DTENSOR_RUNTIME_COMM_NCCL_ROUND_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/nccl/carried_call.h"
#include "dtensor/runtime/comm/nccl/carry_schedule.h"

namespace dtensor {

// Launches the round, and adds to `bytes` what NCCL was told to receive.
absl::Status LaunchRound(const CarriedCall& call, const CarriedRound& round, int64_t& bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_ROUND_LAUNCH_H_
