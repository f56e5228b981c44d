// Placements into a layout, and back.
#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/layout_factors.h"
#include "dtensor/layout/layout_orders.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string AxisAs(const DeviceMesh& mesh, int axis, const Placement& placement) {
  return absl::StrCat("axis \"", mesh.axis_name(axis), "\" as ", placement.ToString());
}

absl::Status CheckShard(const DeviceMesh& mesh, int axis, const Placement& p,
                        absl::Span<const int64_t> shape) {
  const int ndim = static_cast<int>(shape.size());
  if (p.dim() < -ndim || p.dim() >= ndim) {
    return InvalidArgument(
        {"placement of ", AxisAs(mesh, axis, p), ": a tensor of shape ", DimsToString(shape),
         " has no dimension ", absl::StrCat(p.dim()),
         ndim == 0 ? "; replicate a scalar" : "; use one below its number of dimensions"});
  }
  if (!IsPlain(p.order()) && p.order().n < 1) {
    return InvalidArgument({"placement of ", AxisAs(mesh, axis, p), " of shape ",
                            DimsToString(shape), ": a unit, rounds or a block must be at least 1"});
  }
  return absl::OkStatus();
}

bool MayMeet(ReduceOp a, ReduceOp b) {
  const auto sums = [](ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; };
  return a == b || (sums(a) && sums(b));
}

absl::Status CheckPlacements(const DeviceMesh& mesh, absl::Span<const Placement> placements,
                             absl::Span<const int64_t> shape) {
  if (static_cast<int>(placements.size()) != mesh.num_axes()) {
    return InvalidArgument({"the mesh ", mesh.ToString(), " has ", absl::StrCat(mesh.num_axes()),
                            " axes, the placements \"", ToString(placements), "\" are ",
                            absl::StrCat(placements.size()),
                            ": give one for each axis, in mesh order"});
  }
  DT_RETURN_IF_ERROR(CheckedNumElements("layout", shape).status());
  int partial = -1;  // the first partial axis
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const Placement& p = placements[axis];
    if (p.is_shard()) DT_RETURN_IF_ERROR(CheckShard(mesh, axis, p, shape));
    if (!p.is_partial()) continue;
    if (partial < 0) partial = axis;
    if (!MayMeet(p.op(), placements[partial].op())) {
      return InvalidArgument({"placement of ", AxisAs(mesh, partial, placements[partial]),
                              " and of ", AxisAs(mesh, axis, p), ": the partial axes of a tensor ",
                              "share one op, or sum and average; reduce one of them first"});
    }
  }
  return absl::OkStatus();
}

// The axes that split dimension d, in mesh order. Axes of size 1 split nothing.
std::vector<Deal> DealsOf(const DeviceMesh& mesh, absl::Span<const Placement> placements, int d,
                          int ndim) {
  std::vector<Deal> deals;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const Placement& p = placements[axis];
    if (!p.is_shard() || mesh.axis_size(axis) == 1) continue;
    if ((p.dim() < 0 ? p.dim() + ndim : p.dim()) != d) continue;
    const bool plain = p.order() == ShardOrder::Unit(1) || p.order() == ShardOrder::Cyclic(1);
    deals.push_back({axis, mesh.axis_size(axis), plain ? ShardOrder::Contiguous() : p.order()});
  }
  return deals;
}

// The size of the innermost group, which no axis splits; 1 if the innermost factor is split.
int64_t GroupOf(const DimLayout& dim) {
  return dim.size() > 1 && dim.back().splits.empty() ? dim.back().size : 1;
}

// The elements dealt out until every rank of `axes` has one block; 0 if that overflows an int64.
int64_t TurnOf(const DeviceMesh& mesh, absl::Span<const int> axes, int64_t block) {
  int64_t turn = block;
  for (int axis : axes) {
    if (__builtin_mul_overflow(turn, mesh.axis_size(axis), &turn)) return 0;
  }
  return turn;
}

// Why axes cannot be added to the splits of `dim` in this order; empty if they can.
absl::string_view WhyNotAdded(const DeviceMesh& mesh, absl::Span<const int> axes,
                              const DimLayout& dim, ShardOrder order) {
  const bool inner_split = dim.size() > 1 && IsSplit(DimLayout(dim.begin() + 1, dim.end()));
  if (order.kind == ShardOrder::Kind::kBlock) {
    const int64_t group = GroupOf(dim), turn = TurnOf(mesh, axes, order.n);
    if (turn == 0) return "one turn of these blocks is longer than any dimension";
    if (inner_split) return "it is dealt in groups already";
    return group % turn == 0 || turn % group == 0 ? "" : "it has units that these blocks would cut";
  }
  if (dim.empty() || order.kind != ShardOrder::Kind::kUnit || order.n == 1) return "";
  if (inner_split) return "an inner factor of it is split";
  return InnerSize(dim, 1) % order.n == 0 ? "" : "it is split already, and not in such units";
}

absl::Status CheckAdded(const Layout& layout, const Placement& p) {
  const ShardOrder order = p.order();
  const bool sized =
      order.kind == ShardOrder::Kind::kUnit || order.kind == ShardOrder::Kind::kBlock;
  if (p.is_partial() || order.kind == ShardOrder::Kind::kCyclic || (sized && order.n < 1)) {
    return InvalidArgument({"layout: axes are placed anew as R, S(d), S(d,unit(u)), S(d,block(b)) ",
                            "or S(d,zigzag), not as ", p.ToString(),
                            "; redistribute to placements that say it"});
  }
  if (p.is_shard() && (p.dim() < -layout.ndim() || p.dim() >= layout.ndim())) {
    return InvalidArgument({"layout: ", p.ToString(), " is out of range for a layout of ",
                            absl::StrCat(layout.ndim()), " dimensions, ", layout.ToString()});
  }
  return absl::OkStatus();
}

// Adds blocks: one factor for each axis. The first axis is innermost, because it splits first. The
// factors go inside an existing group that is longer than a turn, and replace one that is not.
void AddBlocks(const DeviceMesh& mesh, absl::Span<const int> axes, int64_t block, DimLayout& dim) {
  const int64_t rounds = GroupOf(dim) / TurnOf(mesh, axes, block);
  dim.resize(1);
  if (rounds > 1) dim.push_back({rounds, {}});
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    dim.push_back({mesh.axis_size(*axis), {{*axis}}});
  }
  dim.push_back({block, {}});
}

// Adds splits that WhyNotAdded allows. All except blocks are added to the outermost factor.
void AddSplits(const DeviceMesh& mesh, absl::Span<const int> axes, ShardOrder order,
               SplitPosition position, DimLayout& dim) {
  if (dim.empty()) dim = {LayoutFactor{}};
  if (order.kind == ShardOrder::Kind::kBlock) return AddBlocks(mesh, axes, order.n, dim);
  if (order.kind == ShardOrder::Kind::kUnit && dim.size() == 1) dim.push_back({order.n, {}});
  absl::InlinedVector<AxisSplit, 2> added;
  for (int axis : axes) added.push_back({axis, order.kind == ShardOrder::Kind::kZigzag});
  auto& splits = dim[0].splits;
  splits.insert(position == SplitPosition::kMajor ? splits.begin() : splits.end(), added.begin(),
                added.end());
}

}  // namespace

absl::StatusOr<Layout> Layout::WithAxes(absl::Span<const int> axes, const Placement& placement,
                                        SplitPosition position) const {
  DT_RETURN_IF_ERROR(CheckAdded(*this, placement));
  DT_RETURN_IF_ERROR(Create(mesh_, {}, axes).status());  // checks that axes exist, each once
  const auto moves = [&](int axis) { return absl::c_linear_search(axes, axis); };
  absl::InlinedVector<DimLayout, 4> dims;
  for (const DimLayout& dim : dims_) dims.push_back(WithoutAxes(dim, axes));
  AxisList partial = partial_axes_, averaged = averaged_axes();
  for (AxisList* list : {&partial, &averaged}) {
    list->erase(std::remove_if(list->begin(), list->end(), moves), list->end());
  }
  const bool splits = absl::c_any_of(axes, [&](int axis) { return mesh_.axis_size(axis) > 1; });
  if (placement.is_shard() && splits) {
    DimLayout& dim = dims[placement.dim() < 0 ? placement.dim() + ndim() : placement.dim()];
    const absl::string_view why = WhyNotAdded(mesh_, axes, dim, placement.order());
    if (!why.empty()) {
      return InvalidArgument({"layout: ", placement.ToString(), " cannot be added to ", ToString(),
                              " on the mesh ", mesh_.ToString(), ": dimension ",
                              absl::StrCat(placement.dim()), " cannot be split further, for ", why,
                              "; redistribute it first, or place all its axes at once"});
    }
    AddSplits(mesh_, axes, placement.order(), position, dim);
  }
  return Create(mesh_, dims, partial, term_op(), averaged);
}

absl::StatusOr<Layout> Layout::FromPlacements(const DeviceMesh& mesh,
                                              absl::Span<const Placement> placements,
                                              absl::Span<const int64_t> shape) {
  DT_RETURN_IF_ERROR(CheckPlacements(mesh, placements, shape));
  const int ndim = static_cast<int>(shape.size());
  absl::InlinedVector<DimLayout, 4> dims(ndim);
  for (int d = 0; d < ndim; ++d) {
    DT_ASSIGN_OR_RETURN(dims[d], FactorsOf(mesh, d, shape[d], DealsOf(mesh, placements, d, ndim)));
  }
  AxisList partial_axes, averaged;
  ReduceOp op = ReduceOp::kSum;  // of those that do not average
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    partial_axes.push_back(axis);
    if (placements[axis].op() == ReduceOp::kAvg) {
      averaged.push_back(axis);
    } else {
      op = placements[axis].op();
    }
  }
  return Create(mesh, dims, partial_axes, op, averaged);
}

absl::StatusOr<Placements> Layout::ToPlacements(absl::Span<const int64_t> shape) const {
  Placements placements(mesh_.num_axes());
  for (int d = 0; d < ndim(); ++d) {
    for (const Deal& deal : OrdersOf(mesh_, dims_[d], shape[d])) {
      placements[deal.axis] = Shard(d, deal.order);
    }
  }
  for (int axis : partial_axes_) placements[axis] = Partial(partial_op(axis));
  // Only a guess up to here: placements cannot express every order of axes, nor every factor.
  const absl::StatusOr<Layout> meaning = FromPlacements(mesh_, placements, shape);
  if (meaning.ok() && *meaning == *this) return placements;
  return InvalidArgument(
      {"the layout ", ToString(), " of shape ", DimsToString(shape), " on the mesh ",
       mesh_.ToString(), " has no placements that say it; use the layout itself, or redistribute"});
}

}  // namespace dtensor
