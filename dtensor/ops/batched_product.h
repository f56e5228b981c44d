// Products of local matrices, and of batches of them with broadcasting: what MatMul computes on one
// rank.
#ifndef DTENSOR_OPS_BATCHED_PRODUCT_H_
#define DTENSOR_OPS_BATCHED_PRODUCT_H_

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// out = a b, matrix by matrix: a [..., m, k], b [..., k, n] and out [..., m, n], of one float type.
// Leading dimensions are aligned at the right; a and b broadcast along those that they lack or that
// are 1. Along those that `out` lacks, or that are 1 in it, products are summed, in f32 for 16-bit
// types. a and b may have any strides; `out` has a last stride of 1 unless n is 1, no two indices
// with one element, and is row-major if products are summed. Requires: shapes that fit.
absl::Status BatchedProduct(Device& device, const Tensor& a, const Tensor& b, const Tensor& out);

// out = a b, or out + a b if it `adds`: one product of matrices [m, k], [k, n] and [m, n]. Types,
// strides and requirements as above.
absl::Status MatrixProduct(Device& device, const Tensor& a, const Tensor& b, const Tensor& out,
                           bool adds = false);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_OPS_BATCHED_PRODUCT_H_
