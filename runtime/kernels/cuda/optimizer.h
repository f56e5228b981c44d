// optimizer.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_OPTIMIZER_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_OPTIMIZER_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/optimizer_args.h"

namespace dtensor::kernels::cuda {

absl::Status AdamW(Device& device, const char* kernel, const AdamWArgs& args);
absl::Status Sgd(Device& device, const char* kernel, const SgdArgs& args);
absl::Status ClipScale(Device& device, const char* kernel, const ClipScaleArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_OPTIMIZER_H_
