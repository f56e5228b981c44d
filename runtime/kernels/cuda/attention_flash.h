// Attention's kernels for common head sizes, using tensor cores, in the manner of FlashAttention-2
// (Dao, 2023), but with a fixed order of sums: dq has a kernel of its own.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

struct StepRule;
struct KeyParts;

// Whether this kernel computes a step, whatever its mask, carry, strides and addresses; otherwise
// the general one does (attention.cu).
inline bool IsFlash(const AttentionSizes& sizes) {
  return (sizes.dtype == DType::kBF16 || sizes.dtype == DType::kF16) && sizes.dim % 8 == 0 &&
         sizes.dim <= 128 && !sizes.drops && (sizes.scale > 0 || sizes.scale < 0);
}

// Launches it. Copies q, k and v first if they are not aligned to 16 bytes. Requires: IsFlash; at
// least one row of queries. Errors: the device's failure; kResourceExhausted.
absl::Status FlashForward(Device& device, const char* kernel, const StepRule& step,
                          const KeyParts& parts);

// As above, for gradients. Values of Float16 may be too large or too small for it.
inline bool IsFlashGrad(const AttentionSizes& sizes) {
  return sizes.dtype == DType::kBF16 && sizes.dim % 8 == 0 && sizes.dim <= 128 && !sizes.drops;
}
absl::Status FlashGrads(Device& device, const char* kernel, const StepRule& step);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_
