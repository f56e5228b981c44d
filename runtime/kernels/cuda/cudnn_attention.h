// Steps of attention that cuDNN computes. Its results over a block of keys are merged by our own
// kernels with the carry of the rows, to the same result as attention.cu's.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

// Returns whether the step was launched. If not, nothing was done, and the portable kernel computes
// it (attention_choice.h, or cuDNN refuses). Temporary memory is the device's, allocated and freed
// in stream order, so runs on different streams never share a workspace. Errors: the device's
// failure; cuDNN's; kResourceExhausted.
absl::StatusOr<bool> TryCudnnAttention(Device& device, const char* kernel,
                                       const AttentionArgs& args);
absl::StatusOr<bool> TryCudnnAttentionGrad(Device& device, const char* kernel,
                                           const AttentionArgs& args);

// cudnn.h of runtime/kernels.
void AllowCudnn(Device& device, bool allowed);
void SetCudnnScoreBytes(Device& device, int64_t bytes);
int64_t CudnnSteps(const Device& device);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_H_
