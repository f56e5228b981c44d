#include "dtensor/parallel_plans/parallel_style.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::string_view TextOf(DimRole role) {
  switch (role) {
    case DimRole::kOther:
      break;
    case DimRole::kOutput:
      return "output features";
    case DimRole::kInput:
      return "input features";
    case DimRole::kRow:
      return "rows of a table";
    case DimRole::kExpert:
      return "experts";
    case DimRole::kHidden:
      return "hidden features";
  }
  return "other dimensions";
}

absl::Status NothingToSplit(const Module& module, absl::Span<const DimRole> roles) {
  const std::string wanted = absl::StrJoin(
      roles, " or ", [](std::string* out, DimRole role) { absl::StrAppend(out, TextOf(role)); });
  const std::string names =
      absl::StrJoin(module.own_parameters(), ", ", [](std::string* out, const OwnParameter& own) {
        absl::StrAppend(out, own.name, " ", DimsToString(own.parameter->shape));
      });
  return InvalidArgument({"the module does not say that a dimension of its parameters (", names,
                          ") is ", wanted, ", so there is nothing to split; use SequenceParallel ",
                          "or Edges, or declare the parameters with their DimRole (module.h)"});
}

}  // namespace

ModuleEdge StyleSite::Edge(std::optional<Placement> input, std::optional<Placement> output) const {
  return {mesh, axes, input, output, allow_uneven};
}

absl::StatusOr<ParameterPlacements> SplitAlong(const Module& module,
                                               absl::Span<const DimRole> roles) {
  ParameterPlacements placements = ReplicateAll(module);
  bool any = placements.empty();
  for (const OwnParameter& own : module.own_parameters()) {
    const auto dim =
        std::find_first_of(own.roles.begin(), own.roles.end(), roles.begin(), roles.end());
    if (dim == own.roles.end()) continue;
    placements[own.name] = Shard(static_cast<int>(dim - own.roles.begin()));
    any = true;
  }
  if (!any) return NothingToSplit(module, roles);
  return placements;
}

ParameterPlacements ReplicateAll(const Module& module) {
  ParameterPlacements placements;
  for (const OwnParameter& own : module.own_parameters()) placements[own.name] = Replicate();
  return placements;
}

}  // namespace dtensor
