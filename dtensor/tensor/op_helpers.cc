#include "dtensor/tensor/op_helpers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/reduce.h"

namespace dtensor::internal {

absl::Status CheckDefined(absl::string_view op, const TensorOr& x) {
  if (!x.ok()) return x.status();
  if (!x->defined()) return InvalidArgument({op, ": the operand is undefined"});
  return absl::OkStatus();
}

absl::Status CheckNdim(absl::string_view op, Specs operands, int operand, int ndim) {
  if (operands[operand]->ndim() == ndim) return absl::OkStatus();
  return InvalidArgument({op, ": operand ", absl::StrCat(operand), " must have ",
                          absl::StrCat(ndim), " dimensions (", SpecsText(operands),
                          "); Reshape it first"});
}

absl::StatusOr<int> CheckedDim(absl::string_view op, const Spec& spec, int dim) {
  if (dim >= -spec.ndim() && dim < spec.ndim()) return dim < 0 ? dim + spec.ndim() : dim;
  const std::string remedy =
      spec.ndim() == 0 ? "Reshape it first: it is a scalar"
                       : absl::StrCat("give one of ", -spec.ndim(), " to ", spec.ndim() - 1);
  return InvalidArgument(
      {op, ": there is no dimension ", absl::StrCat(dim), " in ", spec.ToString(), "; ", remedy});
}

absl::Status CheckRowOffsets(absl::string_view op, const DistributedTensor& x,
                             absl::Span<const int64_t> offsets) {
  if (offsets.empty()) return absl::OkStatus();
  const int64_t rows = x.ndim() > 0 ? x.shape()[0] : 0;
  if (static_cast<int64_t>(offsets.size()) != rows) {
    return InvalidArgument({op, ": there are ", absl::StrCat(offsets.size()),
                            " offsets for the batch of ", x.ToString(), "; give one for each"});
  }
  if (!x.context().recording()) return absl::OkStatus();
  return InvalidArgument({op, ": offsets of batch entries have no gradient (", x.ToString(),
                          "); call it where nothing is recorded (NoGrad)"});
}

absl::StatusOr<std::vector<int64_t>> ReadIds(const Tensor& ids) {
  if (ids.dtype() == DType::kI64) return ToHost<int64_t>(ids);
  DT_ASSIGN_OR_RETURN(const std::vector<int32_t> narrow, ToHost<int32_t>(ids));
  return std::vector<int64_t>(narrow.begin(), narrow.end());
}

TensorOr Itself(const TensorOr& x) {
  if (x->context().recording()) return x;
  DistributedTensor unrecorded = x->Detach();
  unrecorded.set_pinned(x->pinned());
  return unrecorded;
}

std::string Letter(int dim) { return absl::StrCat("d", dim); }

std::string Letters(int ndim) {
  std::vector<std::string> letters;
  for (int d = 0; d < ndim; ++d) letters.push_back(Letter(d));
  return absl::StrJoin(letters, " ");
}

absl::StatusOr<Tensor> ReshapeLocal(Device& device, const Tensor& x,
                                    absl::Span<const int64_t> shape) {
  if (auto view = x.Reshape(shape); view.ok()) return view;
  DT_ASSIGN_OR_RETURN(const Tensor copy, Contiguous(device, x));
  return copy.Reshape(shape);
}

absl::Status SumToShape(Device& device, const Tensor& x, const Tensor& out) {
  const int missing = x.ndim() - out.ndim();
  absl::InlinedVector<int, 4> dims;
  for (int d = 0; d < x.ndim(); ++d) {
    if (d < missing || x.size(d) != out.size(d - missing)) dims.push_back(d);
  }
  if (dims.empty()) return kernels::Unary(device, kernels::UnaryOp::kCopy, x, out);
  return kernels::Reduce(device, ReduceOp::kSum, x, dims, out);
}

}  // namespace dtensor::internal
