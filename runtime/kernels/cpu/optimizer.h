// optimizer.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/optimizer_args.h"

namespace dtensor::kernels::cpu {

absl::Status AdamW(Device& device, const char* kernel, const AdamWArgs& args);
absl::Status Sgd(Device& device, const char* kernel, const SgdArgs& args);
absl::Status ClipScale(Device& device, const char* kernel, const ClipScaleArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_OPTIMIZER_H_
