// indexed.h's rotary embedding on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ROPE_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ROPE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"

namespace dtensor::kernels::cuda {

absl::Status Rope(Device& device, const char* kernel, const RopeArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ROPE_H_
