// scan.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SCAN_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SCAN_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/scan_args.h"

namespace dtensor::kernels::cuda {

absl::Status CumSum(Device& device, const char* kernel, const CumSumArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SCAN_H_
