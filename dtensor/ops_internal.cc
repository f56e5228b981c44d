#include "dtensor/ops_internal.h"

#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/reduce.h"

namespace dtensor::internal {

absl::Span<const OpDef* const> AllOps() {
  static constexpr const OpDef* kAll[] = {
      &kMatMulOp, &kLinearOp,       &kAddOp,     &kSubOp,           &kMulOp,         &kScaleOp,
      &kSiluOp,   &kSiluMulOp,      &kCastOp,    &kCastToIntegerOp, &kSoftmaxOp,     &kRmsNormOp,
      &kSumOp,    &kSumOfSquaresOp, &kReshapeOp, &kTransposeOp,     &kSliceOp,       &kSplitOp,
      &kConcatOp, &kEmbeddingOp,    &kRopeOp,    &kAttentionOp,     &kCrossEntropyOp};
  return kAll;
}

absl::Status CheckDefined(absl::string_view op, const TensorOr& x) {
  if (!x.ok()) return x.status();
  if (!x->defined()) return InvalidArgument({op, ": the operand is undefined"});
  return absl::OkStatus();
}

absl::Status CheckSameTypes(absl::string_view op, Specs operands) {
  for (const Spec* operand : operands) {
    if (operand->dtype == operands[0]->dtype) continue;
    return InvalidArgument(
        {op, ": operands have unlike types (", SpecsText(operands), "); Cast one of them"});
  }
  return absl::OkStatus();
}

absl::Status CheckFloats(absl::string_view op, Specs operands) {
  DT_RETURN_IF_ERROR(CheckSameTypes(op, operands));
  if (IsFloat(operands[0]->dtype)) return absl::OkStatus();
  return InvalidArgument(
      {op, ": takes floating numbers, got ", SpecsText(operands), "; Cast them first"});
}

absl::Status CheckNumbers(absl::string_view op, Specs operands) {
  DT_RETURN_IF_ERROR(CheckSameTypes(op, operands));
  if (operands[0]->dtype != DType::kBool) return absl::OkStatus();
  return InvalidArgument({op, ": takes numbers, got ", SpecsText(operands), "; Cast them first"});
}

absl::Status CheckRank(absl::string_view op, Specs operands, int operand, int rank) {
  if (operands[operand]->rank() == rank) return absl::OkStatus();
  return InvalidArgument({op, ": operand ", absl::StrCat(operand), " must have ",
                          absl::StrCat(rank), " dimensions (", SpecsText(operands),
                          "); Reshape it first"});
}

absl::StatusOr<int> CheckedDim(absl::string_view op, const Spec& spec, int dim) {
  if (dim >= -spec.rank() && dim < spec.rank()) return dim < 0 ? dim + spec.rank() : dim;
  return InvalidArgument({op, ": there is no dimension ", absl::StrCat(dim), " in ",
                          spec.ToString(), "; give one of ", absl::StrCat(-spec.rank()), " to ",
                          absl::StrCat(spec.rank() - 1)});
}

std::string Letter(int dim) { return absl::StrCat("d", dim); }

std::string Letters(int rank) {
  std::vector<std::string> letters;
  for (int d = 0; d < rank; ++d) letters.push_back(Letter(d));
  return absl::StrJoin(letters, " ");
}

absl::StatusOr<Tensor> ReshapeLocal(Device& device, const Tensor& x,
                                    absl::Span<const int64_t> shape) {
  if (auto view = x.Reshape(shape); view.ok()) return view;
  DT_ASSIGN_OR_RETURN(const Tensor copy, Contiguous(device, x));
  return copy.Reshape(shape);
}

absl::Status SumToShape(Device& device, const Tensor& x, const Tensor& out) {
  const int missing = x.rank() - out.rank();
  absl::InlinedVector<int, 4> dims;
  for (int d = 0; d < x.rank(); ++d) {
    if (d < missing || x.size(d) != out.size(d - missing)) dims.push_back(d);
  }
  if (dims.empty()) return kernels::Unary(device, kernels::UnaryOp::kCopy, x, out);
  return kernels::Reduce(device, ReduceOp::kSum, x, dims, out);
}

}  // namespace dtensor::internal
