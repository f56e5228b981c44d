// attention.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cpu {

// How many bytes args.scratch needs. Does not dereference pointers.
int64_t AttentionScratch(const AttentionArgs& args);
int64_t AttentionGradScratch(const AttentionArgs& args);
int64_t MergeAttentionScratch(const AttentionMergeArgs& args);

absl::Status Attention(Device& device, const char* kernel, const AttentionArgs& args);
absl::Status AttentionGrad(Device& device, const char* kernel, const AttentionArgs& args);
absl::Status AttentionDelta(Device& device, const char* kernel, const AttentionDeltaArgs& args);
absl::Status MergeAttention(Device& device, const char* kernel, const AttentionMergeArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_H_
