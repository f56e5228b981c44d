#include "dtensor/parallel_plans/parallel_plan.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/plan_builder.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Creates a group for each unit; the unit's module enters it. The model itself enters the first
// group, so that units are gathered ahead while it is called. If the model is not a unit, that
// group has no parameters.
std::vector<std::shared_ptr<GatherGroup>> AddGroups(Module& model,
                                                    const internal::PlanBuilder& builder) {
  std::vector<std::shared_ptr<GatherGroup>> groups;
  if (builder.units().empty()) return groups;
  const std::shared_ptr<GatherGroups> all = GatherGroups::New();
  if (&builder.module(builder.units()[0].module) != &model) {
    model.set_gather_group(all->Add(ShardLevel::kParameters));
  }
  for (const internal::PlanBuilder::Unit& unit : builder.units()) {
    groups.push_back(all->Add(unit.level));
    builder.module(unit.module).set_gather_group(groups.back());
  }
  return groups;
}

}  // namespace

absl::Status ParallelPlan::Apply(Module& model, Context& context, const DeviceMesh& mesh,
                                 const ParallelPlanOptions& options) const {
  internal::PlanBuilder builder(*this, model, mesh, options);
  DT_RETURN_IF_ERROR(builder.MatchLines());
  DT_ASSIGN_OR_RETURN(const std::vector<bool> recomputed, builder.Recomputed());
  struct Placed {
    internal::PlanBuilder::ParameterUses used;
    int unit;
    Layout in_use, layout;
    std::vector<Layout> copies;  // in other stages
  };
  // A mesh that does not fit the world is refused here, before anything changes.
  DT_RETURN_IF_ERROR(context.Intern(Layout::Replicated(mesh, 0), {}, DType::kF32).status());
  std::vector<Placed> placed;
  for (internal::PlanBuilder::ParameterUses& used : builder.Parameters()) {
    const Parameter& parameter = *used.parameter;
    const int unit = builder.UnitOf(used);
    DT_RETURN_IF_ERROR(parameter.Check(used.path));
    DT_ASSIGN_OR_RETURN(std::vector<Layout> uses, builder.PlaceParameter(used));
    Layout in_use = uses[0];
    uses.erase(uses.begin());
    DT_ASSIGN_OR_RETURN(Layout layout, builder.PlaceBetweenUses(used, unit, in_use));
    DT_RETURN_IF_ERROR(context.Intern(layout, parameter.shape, parameter.dtype).status());
    if (parameter.tensor.defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter ", used.path, " has memory already; apply the plan before Materialize, once"));
    }
    placed.push_back(
        {std::move(used), unit, std::move(in_use), std::move(layout), std::move(uses)});
  }
  DT_RETURN_IF_ERROR(model.SetPaths());
  for (const Placed& p : placed) {
    DT_RETURN_IF_ERROR(p.used.parameter->Materialize(context, p.layout, p.used.path, options.seed));
    p.used.parameter->copies = p.copies;
  }
  const std::vector<std::shared_ptr<GatherGroup>> groups = AddGroups(model, builder);
  for (const Placed& p : placed) {
    if (p.unit < 0) continue;
    DT_RETURN_IF_ERROR(groups[p.unit]->Add(p.used.parameter->tensor, p.in_use));
  }
  for (size_t i = 0; i < builder.size(); ++i) {
    builder.module(i).set_mesh(builder.StageMeshOf(i));
    builder.module(i).edges() = builder.EdgesOf(i);
    for (ModuleEdge& edge : builder.module(i).edges()) edge.keep_gathered = options.keep_gathered;
    builder.SetAttention(i);
    if (!recomputed[i]) continue;  // the module keeps its own setting
    builder.module(i).set_recomputes(true,
                                     {.keep_collectives = options.recompute_keeps_collectives});
  }
  return absl::OkStatus();
}

namespace {

// Whether a result is a sum over a dimension of this role.
bool IsSummed(DimRole role) {
  return role == DimRole::kInput || role == DimRole::kRow || role == DimRole::kExpert ||
         role == DimRole::kHidden;
}

// Whether the module's result is a sum over a dimension that `axis` splits.
bool SumsOver(const Module& module, const DeviceMesh& mesh, int axis) {
  for (const OwnParameter& own : module.own_parameters()) {
    const DistributedTensor& tensor = own.parameter->tensor;
    if (!tensor.defined() || tensor.mesh() != mesh) continue;
    for (size_t d = 0; d < own.roles.size(); ++d) {
      if (!IsSummed(own.roles[d])) continue;
      const AxisList axes = AxesOf(UsedLayout(tensor).dim(static_cast<int>(d)));
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) return true;
    }
  }
  return false;
}

// Whether the last result was such a sum, but was reduced before it came to the output edge.
bool CameWhole(const Module& module, const ModuleEdge& edge) {
  const Spec* last = module.last_result();
  if (last == nullptr || !edge.output || last->mesh() != edge.mesh) return false;
  return std::any_of(edge.axes.begin(), edge.axes.end(), [&](int axis) {
    return last->layout.use(axis) == Layout::AxisUse::kReplicate &&
           SumsOver(module, edge.mesh, axis);
  });
}

std::string ExplainEdge(const Module& module, const ModuleEdge& edge) {
  const std::string axes = absl::StrJoin(edge.axes, ",", [&](std::string* text, int axis) {
    absl::StrAppend(text, edge.mesh.axis_name(axis));
  });
  std::vector<std::string> parts;
  if (edge.input) parts.push_back(absl::StrCat("in ", edge.input->ToString(), " on ", axes));
  if (edge.output) parts.push_back(absl::StrCat("out ", edge.output->ToString(), " on ", axes));
  if (CameWhole(module, edge)) {
    parts.push_back(
        "the last result was all-reduced inside the module, before this edge: what needs the sum, "
        "as a bias does, belongs after it");
  }
  return absl::StrJoin(parts, "; ");
}

std::string ExplainParameter(const std::string& name, const Parameter& parameter) {
  const DistributedTensor& tensor = parameter.tensor;
  const std::string text =
      absl::StrCat(name, " ", DimsToString(parameter.shape), " as ",
                   tensor.defined() ? tensor.layout().ToString() : "(no memory)");
  if (!tensor.defined() || UsedLayout(tensor) == tensor.layout()) return text;
  return absl::StrCat(text, ", used as ", UsedLayout(tensor).ToString());
}

// How a module of another stage reads a parameter.
std::string CopyText(const Parameter& parameter, const std::optional<DeviceMesh>& mesh) {
  for (const Layout& copy : parameter.copies) {
    if (mesh.has_value() && copy.mesh() == *mesh)
      return absl::StrCat(", copied as ", copy.ToString());
  }
  return "";
}

}  // namespace

std::string Explain(Module& model) {
  HashMap<const Module*, std::string> modules;
  HashMap<const Parameter*, std::string> parameters;  // the first path of each
  std::string out;
  model.VisitModulePaths([&](const std::string& path, Module& module) {
    std::vector<std::string> parts;
    const std::string& first_path = modules.try_emplace(&module, path).first->second;
    const bool first = first_path == path;
    if (!first) parts.push_back(absl::StrCat("the module ", first_path));
    const bool places = !module.own_parameters().empty() || !module.edges().empty();
    if (first && places && module.mesh().has_value()) {
      parts.push_back(absl::StrCat("on ", module.mesh()->ToString()));
    }
    for (const OwnParameter& own : module.own_parameters()) {
      const std::string here = JoinPath(path, own.name);
      const auto [owner, fresh] = parameters.try_emplace(own.parameter.get(), here);
      if (fresh) parts.push_back(ExplainParameter(own.name, *own.parameter));
      if (fresh || !first) continue;
      parts.push_back(
          absl::StrCat(own.name, " is ", owner->second, CopyText(*own.parameter, module.mesh())));
    }
    for (const ModuleEdge& edge : module.edges()) {
      if (first && (edge.input || edge.output)) parts.push_back(ExplainEdge(module, edge));
    }
    if (parts.empty()) return;
    absl::StrAppend(&out, path.empty() ? "(model)" : path, ": ", absl::StrJoin(parts, "; "), "\n");
  });
  return out;
}

}  // namespace dtensor
