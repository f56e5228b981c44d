// box.h and copy.h on a GPU. Memory may be on other GPUs that this one can access.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_BOX_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_BOX_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/box_args.h"

namespace dtensor::kernels::cuda {

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args);
absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args);
absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_BOX_H_
