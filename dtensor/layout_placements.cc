// Placements into a layout, and back.
#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout.h"
#include "dtensor/layout_factors.h"
#include "dtensor/layout_orders.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string AxisAs(const DeviceMesh& mesh, int axis, const Placement& placement) {
  return absl::StrCat("axis \"", mesh.axis_name(axis), "\" as ", placement.ToString());
}

absl::Status CheckShard(const DeviceMesh& mesh, int axis, const Placement& p,
                        absl::Span<const int64_t> shape) {
  const int rank = static_cast<int>(shape.size());
  if (p.dim() < -rank || p.dim() >= rank) {
    return InvalidArgument({"placement of ", AxisAs(mesh, axis, p), ": a tensor of shape ",
                            DimsToString(shape), " has no dimension ", absl::StrCat(p.dim()),
                            rank == 0 ? "; replicate a scalar" : "; use one below its rank"});
  }
  if (!IsPlain(p.order()) && p.order().n < 1) {
    return InvalidArgument({"placement of ", AxisAs(mesh, axis, p), " of shape ",
                            DimsToString(shape), ": a unit, rounds or a block must be at least 1"});
  }
  return absl::OkStatus();
}

absl::Status CheckPlacements(const DeviceMesh& mesh, absl::Span<const Placement> placements,
                             absl::Span<const int64_t> shape) {
  if (static_cast<int>(placements.size()) != mesh.rank_of_axes()) {
    return InvalidArgument({"the mesh ", mesh.ToString(), " has ",
                            absl::StrCat(mesh.rank_of_axes()), " axes, the placements \"",
                            ToString(placements), "\" are ", absl::StrCat(placements.size()),
                            ": give one for each axis, in mesh order"});
  }
  if (absl::c_any_of(shape, [](int64_t n) { return n < 0; })) {
    return InvalidArgument({"shape ", DimsToString(shape), ": a size is at least 0"});
  }
  int partial = -1;  // the first partial axis
  for (int axis = 0; axis < mesh.rank_of_axes(); ++axis) {
    const Placement& p = placements[axis];
    if (p.is_shard()) DT_RETURN_IF_ERROR(CheckShard(mesh, axis, p, shape));
    if (!p.is_partial()) continue;
    if (partial < 0) partial = axis;
    if (p.op() != placements[partial].op()) {
      return InvalidArgument({"placement of ", AxisAs(mesh, partial, placements[partial]),
                              " and of ", AxisAs(mesh, axis, p), ": the partial axes of a tensor ",
                              "share one op; reduce one of them first"});
    }
  }
  return absl::OkStatus();
}

// The axes that split dimension d, in mesh order. Axes of size 1 split nothing.
std::vector<Deal> DealsOf(const DeviceMesh& mesh, absl::Span<const Placement> placements, int d,
                          int rank) {
  std::vector<Deal> deals;
  for (int axis = 0; axis < mesh.rank_of_axes(); ++axis) {
    const Placement& p = placements[axis];
    if (!p.is_shard() || mesh.axis_size(axis) == 1) continue;
    if ((p.dim() < 0 ? p.dim() + rank : p.dim()) != d) continue;
    const bool plain = p.order() == Order::Unit(1) || p.order() == Order::Cyclic(1);
    deals.push_back({axis, mesh.axis_size(axis), plain ? Order::Contiguous() : p.order()});
  }
  return deals;
}

// Why axes cannot become minor splits of `dim` between groups of `unit`; empty when they can.
absl::string_view WhyNoMinorSplit(const DimLayout& dim, int64_t unit) {
  if (dim.empty()) return "";
  if (IsSplit(DimLayout(dim.begin() + 1, dim.end()))) return "an inner factor of it is split";
  return InnerSize(dim, 1) % unit == 0 ? "" : "it is split already, and not in such units";
}

absl::Status CheckAdded(const Layout& layout, const Placement& p) {
  const Order order = p.order();
  if (p.is_partial() || (order.kind != Order::Kind::kContiguous &&
                         (order.kind != Order::Kind::kUnit || order.n < 1))) {
    return InvalidArgument({"layout: axes are placed anew as R, S(d) or S(d,unit(u)), not as ",
                            p.ToString(), "; redistribute to placements that say it"});
  }
  if (p.is_shard() && (p.dim() < -layout.rank() || p.dim() >= layout.rank())) {
    return InvalidArgument({"layout: ", p.ToString(), " is out of range for a layout of ",
                            absl::StrCat(layout.rank()), " dimensions, ", layout.ToString()});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> Layout::WithAxes(absl::Span<const int> axes,
                                        const Placement& placement) const {
  DT_RETURN_IF_ERROR(CheckAdded(*this, placement));
  const auto moves = [&](int axis) { return absl::c_linear_search(axes, axis); };
  absl::InlinedVector<DimLayout, 4> dims;
  for (const DimLayout& dim : dims_) dims.push_back(WithoutAxes(dim, axes));
  AxisList partial = partial_axes_;
  partial.erase(std::remove_if(partial.begin(), partial.end(), moves), partial.end());
  const bool splits = absl::c_any_of(axes, [&](int axis) {  // an unknown one: Create refuses it
    return axis < 0 || axis >= mesh_.rank_of_axes() || mesh_.axis_size(axis) > 1;
  });
  if (placement.is_shard() && splits) {
    DimLayout& dim = dims[placement.dim() < 0 ? placement.dim() + rank() : placement.dim()];
    const int64_t unit = std::max<int64_t>(1, placement.order().n);
    if (const absl::string_view why = WhyNoMinorSplit(dim, unit); !why.empty()) {
      return InvalidArgument({"layout: ", placement.ToString(), " cannot be added to ", ToString(),
                              " on the mesh ", mesh_.ToString(), ": dimension ",
                              absl::StrCat(placement.dim()), " cannot be split further, for ", why,
                              "; redistribute it first, or place all its axes at once"});
    }
    if (dim.empty()) dim = {Factor{}, Factor{.size = unit}};
    for (int axis : axes) dim[0].splits.push_back({axis, false});
  }
  return Create(mesh_, dims, partial, op_);
}

absl::StatusOr<Layout> Layout::FromPlacements(const DeviceMesh& mesh,
                                              absl::Span<const Placement> placements,
                                              absl::Span<const int64_t> shape) {
  DT_RETURN_IF_ERROR(CheckPlacements(mesh, placements, shape));
  const int rank = static_cast<int>(shape.size());
  absl::InlinedVector<DimLayout, 4> dims(rank);
  for (int d = 0; d < rank; ++d) {
    DT_ASSIGN_OR_RETURN(dims[d], FactorsOf(mesh, d, shape[d], DealsOf(mesh, placements, d, rank)));
  }
  AxisList partial_axes;
  ReduceOp op = ReduceOp::kSum;
  for (int axis = 0; axis < mesh.rank_of_axes(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    partial_axes.push_back(axis);
    op = placements[axis].op();
  }
  return Create(mesh, dims, partial_axes, op);
}

absl::StatusOr<Placements> Layout::ToPlacements(absl::Span<const int64_t> shape) const {
  Placements placements(mesh_.rank_of_axes());
  for (int d = 0; d < rank(); ++d) {
    for (const Deal& deal : OrdersOf(mesh_, dims_[d], shape[d])) {
      placements[deal.axis] = Shard(d, deal.order);
    }
  }
  for (int axis : partial_axes_) placements[axis] = Partial(op_);
  // A guess so far: placements know neither every order of axes nor every factor.
  const absl::StatusOr<Layout> meaning = FromPlacements(mesh_, placements, shape);
  if (meaning.ok() && *meaning == *this) return placements;
  return InvalidArgument(
      {"the layout ", ToString(), " of shape ", DimsToString(shape), " on the mesh ",
       mesh_.ToString(), " has no placements that say it; use the layout itself, or redistribute"});
}

}  // namespace dtensor
