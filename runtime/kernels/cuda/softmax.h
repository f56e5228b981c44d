// softmax.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SOFTMAX_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SOFTMAX_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/softmax_args.h"

namespace dtensor::kernels::cuda {

absl::Status Softmax(Device& device, const char* kernel, const SoftmaxArgs& args);
absl::Status SoftmaxGrad(Device& device, const char* kernel, const SoftmaxGradArgs& args);
absl::Status SoftmaxStats(Device& device, const char* kernel, const SoftmaxStatsArgs& args);
absl::Status SoftmaxMerge(Device& device, const char* kernel, const SoftmaxMergeArgs& args);
absl::Status SoftmaxGradSums(Device& device, const char* kernel, const SoftmaxGradSumsArgs& args);
absl::Status SoftmaxGradMerge(Device& device, const char* kernel, const SoftmaxGradMergeArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SOFTMAX_H_
