// Sums along one dimension up to each of its elements. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_SCAN_H_
#define DTENSOR_RUNTIME_KERNELS_SCAN_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// y[a, i, b] = start[a, b] + the sum of x[a, j, b] over j <= i, or, if `reverse`, over j >= i. x
// and y: [a, n, b], row-major except for the stride of dimension 0; y may be x. start: [a, b],
// row-major, of AccumulatorOf(x's type); undefined: zeros. Numbers; accumulated in
// AccumulatorOf(x's type), in the same order on all devices; integers wrap around. On a GPU
// one thread adds up the sums of a column's chunks of 128: columns of many millions are slow.
absl::Status CumSum(Device& device, const Tensor& x, bool reverse, const Tensor& start,
                    const Tensor& y);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_SCAN_H_
