// windows.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_WINDOWS_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_WINDOWS_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/windows_args.h"

namespace dtensor::kernels::cuda {

absl::Status Windows(Device& device, const char* kernel, const WindowsArgs& args);
absl::Status WindowsGrad(Device& device, const char* kernel, const WindowsGradArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_WINDOWS_H_
