// Comparisons, and selection by a condition. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_COMPARISON_H_
#define DTENSOR_RUNTIME_KERNELS_COMPARISON_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/elementwise_op.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// out = op(a, b), bool; a and b have the same type, any. With NaN, all but kNotEqual are false.
absl::Status Compare(Device& device, CompareOp op, const Tensor& a, const Tensor& b,
                     const Tensor& out);
// out = condition ? a : b, bit for bit; condition is bool; a, b and out have the same type, any.
absl::Status Where(Device& device, const Tensor& condition, const Tensor& a, const Tensor& b,
                   const Tensor& out);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_COMPARISON_H_
