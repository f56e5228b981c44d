// Lets tests use the kernels for older GPUs.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_LIMIT_CUDA_CAPABILITY_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_LIMIT_CUDA_CAPABILITY_H_

#include "dtensor/runtime/device/device.h"

namespace dtensor {

// From now on the device uses the kernels for GPUs of at most this capability (CudaCapabilityOf).
// Requires: a cuda device.
void LimitCudaCapability(Device& device, int at_most);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_LIMIT_CUDA_CAPABILITY_H_
