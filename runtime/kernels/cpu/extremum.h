// extremum.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_EXTREMUM_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_EXTREMUM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/extremum_args.h"

namespace dtensor::kernels::cpu {

absl::Status ArgMaxStats(Device& device, const char* kernel, const ArgMaxStatsArgs& args);
absl::Status ArgMaxMerge(Device& device, const char* kernel, const ArgMaxMergeArgs& args);
absl::Status CountTies(Device& device, const char* kernel, const CountTiesArgs& args);
absl::Status ShareAmongTies(Device& device, const char* kernel, const ShareAmongTiesArgs& args);
absl::Status TopK(Device& device, const char* kernel, const TopKArgs& args);
absl::Status Take(Device& device, const char* kernel, const TakeArgs& args);
absl::Status TakeGrad(Device& device, const char* kernel, const TakeGradArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_EXTREMUM_H_
