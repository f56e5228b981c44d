// Elementwise kernels on one rank's local tensors.
//
// Kernels take a Device (its queue), inputs, and outputs that the caller allocated. What the
// operator layer has checked (shapes, types) is only DT_CHECKed. Inputs may have any strides,
// including 0 for broadcast; outputs are row-major. An output may be the memory of an input that is
// also row-major, but may not overlap others: elements are visited in any order. Floats are
// computed in f32 (f64 for f64) and rounded once. Errors: the device's failure; kUnimplemented,
// naming kernel, types and device, if the device has no such kernel (by_device.h).
#ifndef DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_
#define DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/swiglu_clamp.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// out = op(a, b); a, b and out have one shape and type. All types; kDiv floats only.
absl::Status Binary(Device& device, BinaryOp op, const Tensor& a, const Tensor& b,
                    const Tensor& out);
// out = the sum of 1 to kMaxTerms terms of out's shape and type, in the given order, rounded once.
// All types but bool.
inline constexpr int kMaxTerms = 8;
absl::Status AddN(Device& device, absl::Span<const Tensor> terms, const Tensor& out);
// out = op(a). kCopy also converts types (float -> int truncates). Otherwise a and out have one
// type: bool for kNot, any but bool for kNeg, floats for all others.
absl::Status Unary(Device& device, UnaryOp op, const Tensor& a, const Tensor& out);
// out = scale * a + shift; all types but bool.
absl::Status Affine(Device& device, const Tensor& a, double scale, double shift, const Tensor& out);
// out = scale * a; a shift of +0 would make +0 of -0.
inline absl::Status Scale(Device& device, const Tensor& a, double scale, const Tensor& out) {
  return Affine(device, a, scale, -0.0, out);
}
absl::Status Fill(Device& device, const Tensor& out, double value);  // out may have any strides

// out = a^exponent as by std::pow, except 1/2 and -1/2, which use square roots. Floats.
absl::Status Pow(Device& device, const Tensor& a, double exponent, const Tensor& out);

// --- Gradients of floats, all of one shape and type. At 0, infinities and NaN they are as
// PyTorch's.

// dx = dy * op'(x), computed from the result of op if GradReadsResult(op), else from x. Not for
// kCopy, kNot and kNeg, whose gradients need neither.
absl::Status UnaryGrad(Device& device, UnaryOp op, const Tensor& saved, const Tensor& dy,
                       const Tensor& dx);
// dx = dy * exponent * x^(exponent - 1); 0 if the exponent is 0.
absl::Status PowGrad(Device& device, const Tensor& x, double exponent, const Tensor& dy,
                     const Tensor& dx);
// dx = dy * the derivative of op(a, b) with respect to a (operand 0) or b (operand 1), for kDiv,
// kMax and kMin. If a = b, each gets half of the gradient of their maximum or minimum.
absl::Status BinaryGrad(Device& device, BinaryOp op, int operand, const Tensor& a, const Tensor& b,
                        const Tensor& dy, const Tensor& dx);
// y = silu(gate) * up, silu(x) = x * sigmoid(x), in one pass: the SwiGLU product; and its gradient.
absl::Status SiluMul(Device& device, const Tensor& gate, const Tensor& up, const Tensor& y);
absl::Status SiluMulGrad(Device& device, const Tensor& gate, const Tensor& up, const Tensor& dy,
                         const Tensor& dgate, const Tensor& dup);
// The product of GPT-OSS, and its gradient: y = (u + 1) * g * sigmoid(slope * g), g = min(gate,
// limit), u = min(max(up, -limit), limit). Beyond a limit the gradient is 0.
absl::Status ClampedSwiGlu(Device& device, const Tensor& gate, const Tensor& up,
                           const SwiGluClamp& clamp, const Tensor& y);
absl::Status ClampedSwiGluGrad(Device& device, const Tensor& gate, const Tensor& up,
                               const SwiGluClamp& clamp, const Tensor& dy, const Tensor& dgate,
                               const Tensor& dup);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ELEMENTWISE_H_
