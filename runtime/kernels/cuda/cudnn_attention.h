// Steps of attention that cuDNN computes. What it gives, results over a block of keys, is joined
// with what the rows carry by kernels of ours, as attention.cu would have left it.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

// Whether it was launched; if not, nothing was done, and the step is the portable kernel's
// (attention_choice.h, or cuDNN refuses). Memory that is needed in between is the device's, taken
// and given back in the stream's order: so runs on different streams never share a workspace.
// Errors: the device's failure; cuDNN's; kResourceExhausted.
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
