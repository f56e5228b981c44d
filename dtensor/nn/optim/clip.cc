#include "dtensor/nn/optim/clip.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/layout/digest.h"
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
  }
  if (first != nullptr) return absl::OkStatus();
  return InvalidArgument({"ClipByGlobalNorm: no parameter has a gradient; call Backward first"});
}

// The mesh of the parameters or, if there are several, one of all ranks that are on any of them.
absl::StatusOr<DeviceMesh> JoinedMesh(absl::Span<const DistributedTensor> parameters) {
  const DeviceMesh& first = parameters[0].mesh();
  const auto is_there = [&](const DistributedTensor& p) { return p.mesh() == first; };
  if (absl::c_all_of(parameters, is_there)) return first;
  std::set<int> ranks;
  for (const DistributedTensor& parameter : parameters) {
    const DeviceMesh& mesh = parameter.mesh();
    for (int i = 0; i < mesh.size(); ++i) ranks.insert(mesh.RankOf(i));
  }
  DT_ASSIGN_OR_RETURN(const DeviceMesh line,
                      DeviceMesh::Create({{"all", static_cast<int>(ranks.size())}}));
  return line.OnRanks(std::vector<int>(ranks.begin(), ranks.end()));
}

// One sum for each layout that sums of squares have. They are Partial on the axes that shard the
// gradient, so a gradient that is replicated on an axis counts only once there.
absl::StatusOr<std::vector<TensorOr>> SumsOfSquares(
    absl::Span<const DistributedTensor> parameters) {
  std::vector<TensorOr> sums;
  for (const DistributedTensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    DT_ASSIGN_OR_RETURN(const DistributedTensor squares, SumOfSquares(parameter.grad()));
    const auto same =
        absl::c_find_if(sums, [&](const TensorOr& sum) { return &sum->spec() == &squares.spec(); });
    if (same == sums.end()) {
      sums.push_back(squares);
      continue;
    }
    DT_ASSIGN_OR_RETURN(*same, Add(*same, squares));
  }
  return sums;
}

// Replicated, on the joined mesh: also if all gradients are on one of several meshes.
TensorOr SumOfAllSquares(absl::Span<const DistributedTensor> parameters) {
  DT_ASSIGN_OR_RETURN(const std::vector<TensorOr> sums, SumsOfSquares(parameters));
  std::vector<TensorOr> totals;  // one for each mesh
  for (const TensorOr& sum : sums) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                        sum->Redistribute(Layout::Replicated(sum->mesh(), 0)));
    const auto same = absl::c_find_if(
        totals, [&](const TensorOr& total) { return total->mesh() == whole.mesh(); });
    if (same == totals.end()) {
      totals.push_back(whole);
      continue;
    }
    DT_ASSIGN_OR_RETURN(*same, Add(*same, whole));
  }
  DT_ASSIGN_OR_RETURN(const DeviceMesh joined, JoinedMesh(parameters));
  if (totals.size() == 1 && totals[0]->mesh() == joined) return totals[0];
  TensorOr all;
  for (const TensorOr& total : totals) {
    const TensorOr there = total->Redistribute(Layout::Replicated(joined, 0));
    all = all.ok() && all->defined() ? Add(all, there) : there;
    DT_RETURN_IF_ERROR(all.status());
  }
  return all;
}

}  // namespace

absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm, double grad_factor) {
  if (parameters.empty()) return InvalidArgument({"ClipByGlobalNorm: there are no parameters"});
  if (std::isnan(max_norm)) {
    return InvalidArgument({"ClipByGlobalNorm: max_norm is NaN; give a number, or 0 for none"});
  }
  DT_RETURN_IF_ERROR(CheckClippable(parameters));
  Context& context = parameters[0].context();
  const NoGrad no_grad(context);
  DT_ASSIGN_OR_RETURN(const DistributedTensor total, SumOfAllSquares(parameters));
  ClipResult result;
  DT_ASSIGN_OR_RETURN(result.norm, Full(context, total.layout(), {}, total.dtype(), 0));
  DT_ASSIGN_OR_RETURN(result.scale, Full(context, total.layout(), {}, total.dtype(), 1));
  Digest what;
  for (const double number : {max_norm, grad_factor}) what.Add(std::bit_cast<int64_t>(number));
  for (const DistributedTensor& written : {result.norm, result.scale}) {
    DT_RETURN_IF_ERROR(BeforeWrite(written, what.value()));
  }
  if (!total.spec().on_mesh) return result;
  absl::Status status = kernels::ClipScale(context.device(), total.local(), max_norm,
                                           result.norm.local(), result.scale.local(), grad_factor);
  if (!status.ok()) return context.communicator().Fail(status);
  return result;
}

}  // namespace dtensor
