#include "dtensor/ops/dim_units.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {
namespace {

// The axes that shard `dim`, in the first operand in which it is sharded.
AxisList SplittingAxes(Specs operands, int dim) {
  for (const Spec* operand : operands) {
    if (IsSplit(operand->layout.dim(dim))) return AxesOf(operand->layout.dim(dim));
  }
  return {};
}

// Whether `axis` could shard `dim` in all these layouts.
bool IsFree(int axis, int dim, absl::Span<const Layout> layouts) {
  return absl::c_all_of(layouts, [&](const Layout& layout) {
    return layout.use(axis) == Layout::AxisUse::kReplicate ||
           absl::c_linear_search(AxesOf(layout.dim(dim)), axis);
  });
}

// A unit sharded over as many of `axes`, major first, as it has elements for.
LayoutFactor SplitUnit(const DeviceMesh& mesh, const AxisList& axes, int dim, int64_t unit,
                       absl::Span<const Layout> layouts) {
  LayoutFactor factor;
  int64_t shards = 1;
  for (int axis : axes) {
    if (!IsFree(axis, dim, layouts)) continue;
    shards *= mesh.axis_size(axis);
    if (shards > unit) break;
    factor.splits.push_back({axis, false});
  }
  return factor;
}

}  // namespace

int64_t CommonUnit(absl::Span<const int64_t> sizes) {
  int64_t unit = 0;
  for (int64_t size : sizes) unit = std::gcd(unit, size);
  return std::max<int64_t>(unit, 1);
}

std::string TermInUnits(int ndim, int dim, absl::string_view name, int64_t unit) {
  std::vector<std::string> letters;
  for (int d = 0; d < ndim; ++d) letters.push_back(Letter(d));
  letters[dim] = unit == 1 ? absl::StrCat(name, "!") : absl::StrCat("(", name, "! r)");
  return absl::StrJoin(letters, " ");
}

void AddSizes(absl::string_view name, int64_t size, int64_t unit, LetterSizes& sizes) {
  const auto is_unit = [](const auto& known) { return known.first == "r"; };
  sizes.push_back({std::string(name), size / unit});
  if (unit > 1 && absl::c_none_of(sizes, is_unit)) sizes.push_back({"r", unit});
}

int64_t LocalIndex(const Tensor& local, int dim, int64_t size, int64_t unit, int64_t index) {
  if (size == 0) return 0;
  return index / unit * (local.size(dim) / (size / unit));
}

absl::StatusOr<LayoutChoice> SplitWithinUnits(const LayoutChoiceRequest& request, int dim,
                                              int64_t unit) {
  const RuleAssignment& assignment = request.assignment;
  if (unit == 1 || assignment.cost == 0) return LayoutChoice();
  const DeviceMesh& mesh = request.operands[0]->mesh();
  const DimLayout inside = {
      SplitUnit(mesh, SplittingAxes(request.operands, dim), dim, unit, assignment.operands)};
  if (!IsSplit(inside)) return LayoutChoice();
  LayoutChoice choice;
  double cost = 0;
  for (size_t i = 0; i < request.operands.size(); ++i) {
    const Spec& given = *request.operands[i];
    DT_ASSIGN_OR_RETURN(const DimLayout split, JoinDims({}, given.shape[dim] / unit, inside, unit));
    DT_ASSIGN_OR_RETURN(Layout layout, assignment.operands[i].WithDim(dim, split));
    cost += MovingCost(given.layout, layout, given.shape, given.dtype);
    choice.operands.push_back(std::move(layout));
  }
  return cost < assignment.cost ? choice : LayoutChoice();
}

}  // namespace dtensor::internal
