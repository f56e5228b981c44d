// reduce.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/reduce_args.h"

namespace dtensor::kernels::cuda {

absl::Status Reduce(Device& device, const char* kernel, const ReduceArgs& args);
absl::Status SumOfSquares(Device& device, const char* kernel, const SumOfSquaresArgs& args);
absl::Status Bincount(Device& device, const char* kernel, const BincountArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_H_
