#include "dtensor/parallel_plans/parallel_plan.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/plan_builder.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

ParallelStyle Colwise(std::string axis) {
  return {"Colwise", std::move(axis), ParameterStyle::kColwise, Replicate(), std::nullopt};
}
ParallelStyle Rowwise(std::string axis, Placement output) {
  return {"Rowwise", std::move(axis), ParameterStyle::kRowwise, std::nullopt, output};
}
ParallelStyle SequenceParallel(std::string axis) {
  return {"SequenceParallel", std::move(axis), ParameterStyle::kReplicate, Shard(1), Shard(1)};
}
ParallelStyle DataParallel(std::string axis) {
  return {"DataParallel", std::move(axis), std::nullopt, Shard(0), std::nullopt};
}
ParallelStyle Edges(std::string axis, std::optional<Placement> input,
                    std::optional<Placement> output) {
  return {"Edges", std::move(axis), std::nullopt, input, output};
}

absl::Status ParallelPlan::Apply(Module& model, Context& context, const DeviceMesh& mesh,
                                 const ParallelPlanOptions& options) const {
  internal::PlanBuilder builder(*this, model, mesh, options);
  DT_RETURN_IF_ERROR(builder.MatchLines());
  struct Placed {
    internal::PlanBuilder::ParameterUses used;
    Layout layout;
  };
  std::vector<Placed> placed;
  for (internal::PlanBuilder::ParameterUses& used : builder.Parameters()) {
    const Parameter& parameter = *used.parameter;
    DT_ASSIGN_OR_RETURN(Layout layout, builder.PlaceParameter(used));
    // Refuses a mesh that does not fit the world before anything changes.
    DT_RETURN_IF_ERROR(context.Intern(layout, parameter.shape, parameter.dtype).status());
    if (parameter.tensor.defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter ", used.path, " has memory already; apply the plan before Materialize, once"));
    }
    placed.push_back({std::move(used), std::move(layout)});
  }
  for (const Placed& p : placed) {
    DT_RETURN_IF_ERROR(p.used.parameter->Materialize(context, p.layout, p.used.path, options.seed));
  }
  for (size_t i = 0; i < builder.size(); ++i) {
    builder.module(i).path_ = builder.path(i);
    builder.module(i).edges_ = builder.EdgesOf(i);
    builder.PinAttention(i);
  }
  return absl::OkStatus();
}

namespace {

std::string ExplainEdge(const ModuleEdge& edge) {
  const std::string axes = absl::StrJoin(edge.axes, ",", [&](std::string* text, int axis) {
    absl::StrAppend(text, edge.mesh.axis_name(axis));
  });
  std::vector<std::string> parts;
  if (edge.input) parts.push_back(absl::StrCat("in ", edge.input->ToString(), " on ", axes));
  if (edge.output) parts.push_back(absl::StrCat("out ", edge.output->ToString(), " on ", axes));
  if (edge.came_whole) {
    parts.push_back(
        "the last result was all-reduced inside the module, before this edge: what needs the sum, "
        "as a bias does, belongs after it");
  }
  return absl::StrJoin(parts, "; ");
}

std::string ExplainParameter(const std::string& name, const Parameter& parameter) {
  return absl::StrCat(
      name, " ", DimsToString(parameter.shape), " as ",
      parameter.tensor.defined() ? parameter.tensor.layout().ToString() : "(no memory)");
}

}  // namespace

std::string Explain(Module& model) {
  absl::flat_hash_map<const Module*, std::string> modules;
  absl::flat_hash_map<const Parameter*, std::string> parameters;  // the first path of each
  std::string out;
  model.VisitModulePaths([&](const std::string& path, Module& module) {
    std::vector<std::string> parts;
    const std::string& first_path = modules.try_emplace(&module, path).first->second;
    const bool first = first_path == path;  // clang 14 captures no structured bindings
    if (!first) parts.push_back(absl::StrCat("the module ", first_path));
    module.VisitOwnParameters([&](const std::string& name, Parameter& parameter) {
      const std::string here = absl::StrCat(path, path.empty() ? "" : ".", name);
      const auto [owner, fresh] = parameters.try_emplace(&parameter, here);
      if (fresh) parts.push_back(ExplainParameter(name, parameter));
      if (!fresh && first) parts.push_back(absl::StrCat(name, " is ", owner->second));
    });
    for (const ModuleEdge& edge : module.edges()) {
      if (first && (edge.input || edge.output)) parts.push_back(ExplainEdge(edge));
    }
    if (parts.empty()) return;
    absl::StrAppend(&out, path.empty() ? "(model)" : path, ": ", absl::StrJoin(parts, "; "), "\n");
  });
  return out;
}

}  // namespace dtensor
