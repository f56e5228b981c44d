// The mean over targets of indexed.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_TARGET_MEAN_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_TARGET_MEAN_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cuda {

absl::Status TargetMeanStats(Device& device, const char* kernel, const TargetMeanStatsArgs& args);
absl::Status TargetMeanMerge(Device& device, const char* kernel, const TargetMeanMergeArgs& args);
absl::Status TargetMeanGrad(Device& device, const char* kernel, const TargetMeanGradArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_TARGET_MEAN_H_
