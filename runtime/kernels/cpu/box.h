// box.h and copy.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_BOX_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_BOX_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/box_args.h"

namespace dtensor::kernels::cpu {

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args);
absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args);
absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_BOX_H_
