// comparison.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_COMPARISON_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_COMPARISON_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"

namespace dtensor::kernels::cuda {

absl::Status Compare(Device& device, const char* kernel, const CompareArgs& args);
absl::Status Where(Device& device, const char* kernel, const WhereArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_COMPARISON_H_
