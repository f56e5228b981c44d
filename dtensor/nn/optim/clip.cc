#include "dtensor/nn/optim/clip.h"

#include <utility>
#include <vector>

#include "dtensor/nn/optim/parameter_checks.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/optimizer.h"

namespace dtensor {
namespace {

// Also checks that some parameter has a gradient.
absl::Status CheckClippable(absl::Span<const DistributedTensor> parameters) {
  DT_RETURN_IF_ERROR(CheckDistinct("ClipByGlobalNorm", {parameters}));
  const DistributedTensor* first = nullptr;  // the first one that has a gradient
  for (const DistributedTensor& parameter : parameters) {
    DT_RETURN_IF_ERROR(CheckReduced("ClipByGlobalNorm", parameter));
    if (!parameter.grad().defined()) continue;
    if (first == nullptr) first = &parameter;
    if (AccumulatorOf(parameter.dtype()) != AccumulatorOf(first->dtype())) {
      return InvalidArgument({"ClipByGlobalNorm: f64 gradients and narrower ones have no common ",
                              "norm (", first->ToString(), " and ", parameter.ToString(),
                              "); clip them apart"});
    }
    if (parameter.mesh() != first->mesh()) {
      return InvalidArgument({"ClipByGlobalNorm: gradients on two meshes have no common norm (",
                              first->ToString(), " and ", parameter.ToString(),
                              "); clip them apart"});
    }
  }
  if (first != nullptr) return absl::OkStatus();
  return InvalidArgument({"ClipByGlobalNorm: no parameter has a gradient; call Backward first"});
}

TensorOr SumOfAllSquares(absl::Span<const DistributedTensor> parameters) {
  // One sum for each layout that sums of squares have. They are Partial on the axes that shard the
  // gradient, so a gradient that is replicated on an axis counts only once there.
  std::vector<TensorOr> sums;
  for (const DistributedTensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    DT_ASSIGN_OR_RETURN(const DistributedTensor squares, SumOfSquares(parameter.grad()));
    bool added = false;
    for (TensorOr& sum : sums) {
      if (&sum->spec() != &squares.spec()) continue;
      DT_ASSIGN_OR_RETURN(sum, Add(sum, squares));
      added = true;
      break;
    }
    if (!added) sums.push_back(squares);
  }
  TensorOr total;
  for (const TensorOr& sum : sums) {
    DT_ASSIGN_OR_RETURN(DistributedTensor whole,
                        sum->Redistribute(Layout::Replicated(sum->mesh(), 0)));
    total = total.ok() && total->defined() ? Add(total, whole) : TensorOr(std::move(whole));
    DT_RETURN_IF_ERROR(total.status());
  }
  return total;
}

}  // namespace

absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm, double grad_factor) {
  if (parameters.empty()) return InvalidArgument({"ClipByGlobalNorm: there are no parameters"});
  DT_RETURN_IF_ERROR(CheckClippable(parameters));
  Context& context = parameters[0].context();
  const NoGrad no_grad(context);
  DT_ASSIGN_OR_RETURN(const DistributedTensor total, SumOfAllSquares(parameters));
  ClipResult result;
  DT_ASSIGN_OR_RETURN(result.norm, Full(context, total.layout(), {}, total.dtype(), 0));
  DT_ASSIGN_OR_RETURN(result.scale, Full(context, total.layout(), {}, total.dtype(), 1));
  if (!total.spec().on_mesh) return result;
  absl::Status status = kernels::ClipScale(context.device(), total.local(), max_norm,
                                           result.norm.local(), result.scale.local(), grad_factor);
  if (!status.ok()) return context.communicator().Fail(status);
  return result;
}

}  // namespace dtensor
