// attention.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

absl::Status Attention(Device& device, const char* kernel, const AttentionArgs& args);
absl::Status AttentionGrad(Device& device, const char* kernel, const AttentionArgs& args);
absl::Status AttentionDelta(Device& device, const char* kernel, const AttentionDeltaArgs& args);
absl::Status MergeAttention(Device& device, const char* kernel, const AttentionMergeArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_H_
