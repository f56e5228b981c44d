// What the operators' families share: checks of operands, and small steps on local
// tensors. For the rooms ops and attention.
#ifndef DTENSOR_TENSOR_OP_HELPERS_H_
#define DTENSOR_TENSOR_OP_HELPERS_H_

#include <cstdint>
#include <string>

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

// Errors: also x's own.
absl::Status CheckDefined(absl::string_view op, const TensorOr& x);
// Operand number `operand` has `ndim` dimensions.
absl::Status CheckNdim(absl::string_view op, Specs operands, int operand, int ndim);
// A dimension of `spec`; negative ones count from the end.
absl::StatusOr<int> CheckedDim(absl::string_view op, const Spec& spec, int dim);

// Offsets of x's batch entries, dimension 0, are none, or as many; and nothing is recorded for
// which they would have to be kept.
absl::Status CheckRowOffsets(absl::string_view op, const DistributedTensor& x,
                             absl::Span<const int64_t> offsets);

// x, for an operator that has nothing to do: not recorded while the Context does not record.
TensorOr Itself(const TensorOr& x);

// --- Rules.

// "d0 d1 d2": a letter for each dimension.
std::string Letter(int dim);
std::string Letters(int ndim);

// --- Local tensors.

using kernels::Contiguous;
// A view where strides allow it, else a copy.
absl::StatusOr<Tensor> ReshapeLocal(Device& device, const Tensor& x,
                                    absl::Span<const int64_t> shape);
// out = x summed over the dimensions along which `out`, of x's type, was broadcast to x's shape.
absl::Status SumToShape(Device& device, const Tensor& x, const Tensor& out);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_TENSOR_OP_HELPERS_H_
