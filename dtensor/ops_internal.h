// What the operators' families share: their definitions, checks of operands, and small steps on
// local tensors. For dtensor/ops_*.cc and for tests that walk over all operators.
#ifndef DTENSOR_OPS_INTERNAL_H_
#define DTENSOR_OPS_INTERNAL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/distributed_tensor.h"
#include "dtensor/op.h"
#include "dtensor/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/copy.h"

namespace dtensor::internal {

// Attributes: what `attrs` of each holds is said where it is defined.
extern const OpDef kMatMulOp, kLinearOp;                                     // ops_product.cc
extern const OpDef kAddOp, kSubOp, kMulOp, kScaleOp, kSiluOp, kSiluMulOp;    // ops_elementwise.cc
extern const OpDef kCastOp, kCastToIntegerOp;                                // ops_elementwise.cc
extern const OpDef kSoftmaxOp, kRmsNormOp;                                   // ops_norm.cc
extern const OpDef kSumOp, kSumOfSquaresOp;                                  // ops_reduce.cc
extern const OpDef kReshapeOp, kTransposeOp, kSliceOp, kSplitOp, kConcatOp;  // ops_view.cc
extern const OpDef kEmbeddingOp, kRopeOp, kAttentionOp, kCrossEntropyOp;     // ops_<name>.cc

// All of them.
absl::Span<const OpDef* const> AllOps();

using Specs = absl::Span<const Spec* const>;

// Attention's arguments as attributes. `mesh` has the axes that the options name. Errors:
// kInvalidArgument for an axis that it lacks.
absl::StatusOr<Attrs> AttentionAttrs(const AttentionOptions& options, const DeviceMesh& mesh,
                                     bool backward);

// --- Checks. Errors: kInvalidArgument naming `op`, the operands and the remedy.

// Errors: also x's own.
absl::Status CheckDefined(absl::string_view op, const TensorOr& x);
absl::Status CheckSameTypes(absl::string_view op, Specs operands);
// All of one floating type.
absl::Status CheckFloats(absl::string_view op, Specs operands);
// All of one type that is not bool.
absl::Status CheckNumbers(absl::string_view op, Specs operands);
// Operand number `operand` has `rank` dimensions.
absl::Status CheckRank(absl::string_view op, Specs operands, int operand, int rank);
// A dimension of `spec`; negative ones count from the end.
absl::StatusOr<int> CheckedDim(absl::string_view op, const Spec& spec, int dim);

// --- Rules.

// "d0 d1 d2": a letter for each dimension.
std::string Letter(int dim);
std::string Letters(int rank);

// --- Local tensors.

using kernels::Contiguous;
// A view where strides allow it, else a copy.
absl::StatusOr<Tensor> ReshapeLocal(Device& device, const Tensor& x,
                                    absl::Span<const int64_t> shape);
// out = x summed over the dimensions along which `out`, of x's type, was broadcast to x's shape.
absl::Status SumToShape(Device& device, const Tensor& x, const Tensor& out);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_INTERNAL_H_
