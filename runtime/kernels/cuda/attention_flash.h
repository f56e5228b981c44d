// Attention's kernels for the heads that most models have, by tensor cores: in the manner of
// FlashAttention-2 (Dao, 2023), but that sums have one order: dq has a kernel of its own.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

struct StepRule;
struct KeyParts;

// Whether a step is this kernel's, whatever its mask, carry, strides and addresses; else it is the
// general one's (attention.cu).
inline bool IsFlash(const AttentionSizes& sizes) {
  return (sizes.dtype == DType::kBF16 || sizes.dtype == DType::kF16) && sizes.dim % 8 == 0 &&
         sizes.dim <= 128 && !sizes.drops && (sizes.scale > 0 || sizes.scale < 0);
}

// Launches it. q, k and v of other alignments than 16 bytes are copied first. Requires: IsFlash;
// rows of queries. Errors: the device's failure; kResourceExhausted.
absl::Status FlashForward(Device& device, const char* kernel, const StepRule& step,
                          const KeyParts& parts);

// The same of gradients. Those of Float16 may be too large or too small for it.
inline bool IsFlashGrad(const AttentionSizes& sizes) {
  return sizes.dtype == DType::kBF16 && sizes.dim % 8 == 0 && sizes.dim <= 128 && !sizes.drops;
}
absl::Status FlashGrads(Device& device, const char* kernel, const StepRule& step);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ATTENTION_FLASH_H_
