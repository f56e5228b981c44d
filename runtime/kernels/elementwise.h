// Element by element, on one rank's local tensors.
//
// Kernels take a Device (its queue), inputs, and outputs that the caller allocated; they check
// nothing that the operator layer has checked (shapes, types: DT_CHECK). Inputs may have any
// strides, 0 for broadcast included; outputs are row-major. Floats compute in f32 (f64 for f64) and
// round once. Errors: the device's failure; kUnimplemented, naming kernel, types and device, where
// the device has no such kernel (by_device.h).
#ifndef DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_
#define DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace dtensor::kernels {

// out = op(a, b); a, b and out have one shape and type. All types; kDiv floats only.
absl::Status Binary(Device& device, BinaryOp op, const Tensor& a, const Tensor& b,
                    const Tensor& out);
// out = op(a). kCopy also converts types (float -> int truncates); otherwise one float type.
absl::Status Unary(Device& device, UnaryOp op, const Tensor& a, const Tensor& out);
// out = scale * a + shift; all types but bool.
absl::Status Affine(Device& device, const Tensor& a, double scale, double shift, const Tensor& out);
absl::Status Fill(Device& device, const Tensor& out, double value);  // out may have any strides

// dx = dy * silu'(x), silu(x) = x * sigmoid(x).
absl::Status SiluGrad(Device& device, const Tensor& x, const Tensor& dy, const Tensor& dx);
// y = silu(gate) * up, in one pass: the SwiGLU product; and its gradient.
absl::Status SiluMul(Device& device, const Tensor& gate, const Tensor& up, const Tensor& y);
absl::Status SiluMulGrad(Device& device, const Tensor& gate, const Tensor& up, const Tensor& dy,
                         const Tensor& dgate, const Tensor& dup);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_
