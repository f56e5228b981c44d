// norm.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_NORM_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_NORM_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/norm_args.h"

namespace dtensor::kernels::cuda {

absl::Status RmsNorm(Device& device, const char* kernel, const RmsNormArgs& args);
absl::Status RowSquares(Device& device, const char* kernel, const RowSquaresArgs& args);
absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args);
absl::Status RmsNormGradDots(Device& device, const char* kernel, const RmsNormGradDotsArgs& args);
absl::Status LayerNorm(Device& device, const char* kernel, const LayerNormArgs& args);
absl::Status RowMoments(Device& device, const char* kernel, const RowMomentsArgs& args);
absl::Status LayerNormGrad(Device& device, const char* kernel, const LayerNormGradArgs& args);
absl::Status LayerNormGradSums(Device& device, const char* kernel,
                               const LayerNormGradSumsArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_NORM_H_
