// indexed.h's cross-entropy on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CROSS_ENTROPY_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CROSS_ENTROPY_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cuda {

absl::Status CrossEntropyStats(Device& device, const char* kernel,
                               const CrossEntropyStatsArgs& args);
absl::Status CrossEntropyMerge(Device& device, const char* kernel,
                               const CrossEntropyMergeArgs& args);
absl::Status CrossEntropyGrad(Device& device, const char* kernel, const CrossEntropyGradArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CROSS_ENTROPY_H_
