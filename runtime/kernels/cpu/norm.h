// norm.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_NORM_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_NORM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/norm_args.h"

namespace dtensor::kernels::cpu {

absl::Status Softmax(Device& device, const char* kernel, const SoftmaxArgs& args);
absl::Status SoftmaxGrad(Device& device, const char* kernel, const SoftmaxGradArgs& args);
absl::Status RmsNorm(Device& device, const char* kernel, const RmsNormArgs& args);
absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_NORM_H_
