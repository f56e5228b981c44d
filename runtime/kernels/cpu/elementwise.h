// elementwise.h on host memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"

namespace dtensor::kernels::cpu {

absl::Status Binary(Device& device, const char* kernel, const BinaryArgs& args);
absl::Status Unary(Device& device, const char* kernel, const UnaryArgs& args);
absl::Status Affine(Device& device, const char* kernel, const AffineArgs& args);
absl::Status Fill(Device& device, const char* kernel, const FillArgs& args);
absl::Status SiluGrad(Device& device, const char* kernel, const SiluGradArgs& args);
absl::Status SiluMul(Device& device, const char* kernel, const SiluMulArgs& args);
absl::Status SiluMulGrad(Device& device, const char* kernel, const SiluMulGradArgs& args);

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ELEMENTWISE_H_
