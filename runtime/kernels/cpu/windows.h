// windows.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_WINDOWS_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_WINDOWS_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/windows_args.h"

namespace dtensor::kernels::cpu {

absl::Status Windows(Device& device, const char* kernel, const WindowsArgs& args);
absl::Status WindowsGrad(Device& device, const char* kernel, const WindowsGradArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_WINDOWS_H_
