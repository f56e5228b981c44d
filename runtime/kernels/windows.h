// Windows along one dimension, as convolutions and pooling read them. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_WINDOWS_H_
#define DTENSOR_RUNTIME_KERNELS_WINDOWS_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/windows_args.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// y[a, i, b, j, :] = x[a, p, b, :] with p = first + i step + j dilation, or `value` if x has no
// such index. x: [a, n, b, c], y: [a, m, b, k, c], of one type; both row-major, except for the
// stride of dimension 0. All types.
absl::Status Windows(Device& device, const Tensor& x, const WindowSteps& steps, double value,
                     const Tensor& y);
// dx[a, p, b, :] = the sum of dy[a, i, b, j, :] over all i and j with first + i step + j dilation =
// p, in ascending j, accumulated in f32 (f64 for f64). dy as y, dx: [a, n, b, c], row-major.
// Floats.
absl::Status WindowsGrad(Device& device, const Tensor& dy, const WindowSteps& steps,
                         const Tensor& dx);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_WINDOWS_H_
