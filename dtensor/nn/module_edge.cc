#include "dtensor/nn/module_edge.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_again.h"

namespace dtensor {
namespace {

// The smallest size whose multiples are split evenly by every axis that shards the outermost
// factor.
int64_t EvenSize(const DeviceMesh& mesh, const DimLayout& dim) {
  int64_t inner = 1, shards = 1, even = 1;
  for (size_t i = 1; i < dim.size(); ++i) inner *= dim[i].size;
  for (const AxisSplit& split : dim[0].splits) {
    const int64_t parts = mesh.axis_size(split.axis);
    even = std::lcm(even, shards * parts * (split.zigzag ? 2 : 1));
    shards *= parts;
  }
  return NumElements({even, inner});
}

// `side`: which side of the edge this is, for error messages.
absl::StatusOr<Layout> PlaceEdge(const Layout& layout, const ModuleEdge& edge,
                                 const Placement& placement, absl::string_view side,
                                 absl::Span<const int64_t> shape) {
  // An edge's axes are numbers, which have another meaning on another mesh.
  if (edge.mesh.num_axes() > 0 && edge.mesh != layout.mesh()) {
    return InvalidArgument({"an activation lies on ", layout.mesh().ToString(), ", and the plan ",
                            "was applied on ", edge.mesh.ToString(), "; make both on one mesh"});
  }
  const int ndim = layout.ndim();
  if (placement.is_shard() && (placement.dim() < -ndim || placement.dim() >= ndim)) {
    const auto name = [&](std::string* out, int axis) { *out += layout.mesh().axis_name(axis); };
    return InvalidArgument({"the plan's ", side, " edge is ", placement.ToString(), " on ",
                            absl::StrJoin(edge.axes, ", ", name), ", and an activation of shape ",
                            DimsToString(shape), " has no such dimension; choose one of its ",
                            absl::StrCat(ndim), " in the plan"});
  }
  DT_ASSIGN_OR_RETURN(Layout placed, layout.WithAxes(edge.axes, placement, edge.position));
  if (!placement.is_shard() || edge.allow_uneven) return placed;
  const int d = placement.dim() < 0 ? placement.dim() + ndim : placement.dim();
  if (!IsSplit(placed.dim(d))) return placed;
  const int64_t even = EvenSize(layout.mesh(), placed.dim(d));
  if (shape[d] % even == 0) return placed;
  int64_t shards = 1;
  for (int axis : AxesOf(placed.dim(d))) shards *= layout.mesh().axis_size(axis);
  return InvalidArgument({"dimension ", absl::StrCat(d), " of an activation of shape ",
                          DimsToString(shape), " is split ", absl::StrCat(shards), " ways (",
                          placed.ToString(), " on ", layout.mesh().ToString(),
                          ") and does not divide; choose a multiple of ", absl::StrCat(even),
                          ", or allow uneven shards"});
}

// Whether `all` has the ranks of `part`, and more.
bool IsPartOf(const DeviceMesh& part, const DeviceMesh& all) {
  if (part.size() >= all.size()) return false;
  for (int i = 0; i < part.size(); ++i) {
    if (!all.Contains(part.RankOf(i))) return false;
  }
  return true;
}

// Not if each stage has a part of x.
absl::Status CheckNotOverStages(const DistributedTensor& x, const std::string& name) {
  const absl::StatusOr<int> axis = x.mesh().AxisIndex(name);
  if (!axis.ok() || x.layout().use(*axis) == Layout::AxisUse::kReplicate) return absl::OkStatus();
  return InvalidArgument({"an operand ", x.ToString(), " lies in parts on ", name,
                          ", the axis of the pipeline's stages, which have other work than to send "
                          "these to each other; Redistribute it before, to Replicate() on ",
                          name});
}

// Whether x may come to another mesh in the pipeline that runs now, if one does.
absl::Status CheckStages(const DistributedTensor& x, const DeviceMesh& mesh) {
  const auto& [axis, stages] = x.context().stages();
  if (axis.empty()) return absl::OkStatus();
  DT_RETURN_IF_ERROR(CheckNotOverStages(x, axis));
  const auto from = std::find(stages.begin(), stages.end(), x.mesh());
  const auto to = std::find(stages.begin(), stages.end(), mesh);
  if (from == stages.end() || to == stages.end() || from + 1 == to) return absl::OkStatus();
  return InvalidArgument(
      {"an operand ", x.ToString(), " is on stage ", absl::StrCat(from - stages.begin()), " of ",
       axis, ", and the module on stage ", absl::StrCat(to - stages.begin()),
       "; in a pipeline activations go from each stage to the next one only: number the stages in "
       "the order of their modules, leave none out between, and hand what later stages need from "
       "stage to stage"});
}

}  // namespace

TensorOr AtEdges(const DistributedTensor& x, absl::Span<const ModuleEdge> edges,
                 std::optional<Placement> ModuleEdge::*side, int index, const DeviceMesh* mesh) {
  Layout layout = x.layout();
  const bool is_input = side == &ModuleEdge::input;
  const bool changes_mesh = mesh != nullptr && *mesh != layout.mesh();
  bool keeps = !is_input || changes_mesh;
  if (changes_mesh) {
    DT_RETURN_IF_ERROR(CheckStages(x, *mesh));
    DT_ASSIGN_OR_RETURN(layout, layout.OnMesh(*mesh));
    // Its ranks take what they have, and then move it among themselves: in a pipeline the others
    // have other work.
    if (!edges.empty() && IsPartOf(*mesh, x.mesh())) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor there, x.Redistribute(layout, {.on_use = true}));
      return AtEdges(there, edges, side, index);
    }
  }
  for (const ModuleEdge& edge : edges) {
    if (!(edge.*side) || (edge.index >= 0 && edge.index != index)) continue;
    keeps = keeps || edge.keep_gathered;
    DT_ASSIGN_OR_RETURN(
        layout, PlaceEdge(layout, edge, *(edge.*side), is_input ? "input" : "output", x.shape()));
  }
  if (layout == x.layout()) return x;
  return keeps ? x.Redistribute(layout, {.on_use = true}) : RedistributeForUse(x, layout);
}

}  // namespace dtensor
