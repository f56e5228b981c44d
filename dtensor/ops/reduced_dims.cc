#include "dtensor/ops/reduced_dims.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

// Returns the dimensions ascending. Refuses repetitions.
absl::StatusOr<ReduceAttrs> ReducedDims(absl::string_view op, const Spec& spec,
                                        absl::Span<const int> dims) {
  ReduceAttrs attrs;
  for (int dim : dims) {
    DT_ASSIGN_OR_RETURN(const int d, CheckedDim(op, spec, dim));
    if (absl::c_linear_search(attrs.dims, d)) {
      return InvalidArgument({op, ": dimension ", absl::StrCat(d), " of ", spec.ToString(),
                              " is given twice; give each once"});
    }
    attrs.dims.push_back(d);
  }
  absl::c_sort(attrs.dims);
  return attrs;
}

}  // namespace

TensorOr DispatchReduction(const OpDef& op, const TensorOr& x, absl::Span<const int> dims) {
  DT_RETURN_IF_ERROR(CheckDefined(op.name, x));
  const Spec& spec = x->spec();
  DT_RETURN_IF_ERROR(op.CheckTypes({&spec}));
  DT_ASSIGN_OR_RETURN(const ReduceAttrs attrs, ReducedDims(op.name, spec, dims));
  if (attrs.dims.empty()) return Itself(x);
  return Dispatch(op, {&x}, attrs);
}

}  // namespace dtensor::internal
