// Helpers that several operators share: checks of operands, and small steps on local tensors. Only
// for the folders ops and attention.
#ifndef DTENSOR_TENSOR_OP_HELPERS_H_
#define DTENSOR_TENSOR_OP_HELPERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/op.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {
using Specs = absl::Span<const Spec* const>;

// --- Checks. Errors: kInvalidArgument naming `op`, the operands and the remedy.

// Checks that x is defined. Errors: also x's own.
absl::Status CheckDefined(absl::string_view op, const TensorOr& x);
// Checks that operand number `operand` has `ndim` dimensions.
absl::Status CheckNdim(absl::string_view op, Specs operands, int operand, int ndim);
// Returns `dim` as a dimension of `spec`, from 0; negative ones count from the end.
absl::StatusOr<int> CheckedDim(absl::string_view op, const Spec& spec, int dim);

// Checks that `offsets` is empty or has one offset for each batch entry (index of dimension 0) of
// x. If it is not empty, the Context must not record, because offsets are not saved for Backward.
absl::Status CheckRowOffsets(absl::string_view op, const DistributedTensor& x,
                             absl::Span<const int64_t> offsets);

// Returns x, for an operator that has nothing to do; if the Context does not record, an alias to
// which no gradient flows. Requires: x is OK.
TensorOr Itself(const TensorOr& x);

// --- Rules.

// "d0 d1 d2": a letter for each dimension.
std::string Letter(int dim);
std::string Letters(int ndim);

// --- Local tensors.

using kernels::Contiguous;
// The values of `ids`, i32 or i64, on the host: waits for them. Not on meta. Errors: failures.
absl::StatusOr<std::vector<int64_t>> ReadIds(const Tensor& ids);
// A view where strides allow it, else a copy.
absl::StatusOr<Tensor> ReshapeLocal(Device& device, const Tensor& x,
                                    absl::Span<const int64_t> shape);
// out = x summed over the dimensions along which `out`, of x's type, was broadcast to x's shape.
absl::Status SumToShape(Device& device, const Tensor& x, const Tensor& out);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_HELPERS_H_
