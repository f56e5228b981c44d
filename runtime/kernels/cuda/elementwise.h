// elementwise.h on a GPU.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ELEMENTWISE_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"

namespace dtensor::kernels::cuda {

absl::Status Binary(Device& device, const char* kernel, const BinaryArgs& args);
absl::Status Unary(Device& device, const char* kernel, const UnaryArgs& args);
absl::Status Affine(Device& device, const char* kernel, const AffineArgs& args);
absl::Status Fill(Device& device, const char* kernel, const FillArgs& args);
absl::Status AddN(Device& device, const char* kernel, const AddNArgs& args);
absl::Status Pow(Device& device, const char* kernel, const PowArgs& args);
absl::Status PowGrad(Device& device, const char* kernel, const PowGradArgs& args);
absl::Status UnaryGrad(Device& device, const char* kernel, const UnaryGradArgs& args);
absl::Status BinaryGrad(Device& device, const char* kernel, const BinaryGradArgs& args);
absl::Status SiluMul(Device& device, const char* kernel, const SiluMulArgs& args);
absl::Status SiluMulGrad(Device& device, const char* kernel, const SiluMulGradArgs& args);
absl::Status ClampedSwiGlu(Device& device, const char* kernel, const ClampedSwiGluArgs& args);
absl::Status ClampedSwiGluGrad(Device& device, const char* kernel,
                               const ClampedSwiGluGradArgs& args);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ELEMENTWISE_H_
