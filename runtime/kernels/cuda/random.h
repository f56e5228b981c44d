// Random numbers of indexed.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_RANDOM_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_RANDOM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cuda {

absl::Status RandomNormal(Device& device, const char* kernel, const RandomNormalArgs& args);
absl::Status RandomUniform(Device& device, const char* kernel, const RandomUniformArgs& args);
absl::Status Dropout(Device& device, const char* kernel, const DropoutArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_RANDOM_H_
