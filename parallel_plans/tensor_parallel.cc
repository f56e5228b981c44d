#include "dtensor/parallel_plans/tensor_parallel.h"

#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/model_plan.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The number of ranks of an axis or a group; 0 if there is none.
int64_t SizeOf(const DeviceMesh& mesh, absl::string_view name) {
  const absl::StatusOr<AxisList> axes = mesh.Find(name);
  if (!axes.ok()) return 0;
  int64_t size = 1;
  for (const int axis : *axes) size *= mesh.axis_size(axis);
  return size;
}

// The same ranks, with the axis split into one that shards the heads and one over which they are
// replicated.
absl::StatusOr<DeviceMesh> CutForHeads(const DeviceMesh& mesh, const std::string& axis,
                                       const KeyValueAxes& parts, int64_t heads, int64_t ranks) {
  if (ranks % heads != 0) {
    return InvalidArgument({"PlanTensorParallel: ", absl::StrCat(heads), " key/value heads and ",
                            absl::StrCat(ranks), " ranks on \"", axis,
                            "\": one has to divide the other; choose an axis of another size"});
  }
  for (const std::string& name : {parts.split, parts.replicated}) {
    if (!mesh.Find(name).ok()) continue;
    return InvalidArgument({"PlanTensorParallel: with ", absl::StrCat(heads),
                            " key/value heads on ", absl::StrCat(ranks), " ranks \"", axis,
                            "\" is cut into \"", parts.split, "\" and \"", parts.replicated,
                            "\", and the mesh ", mesh.ToString(), " has a \"", name,
                            "\" already; give that another name"});
  }
  return mesh.SplitAxis(axis, {{parts.split, static_cast<int>(heads)},
                               {parts.replicated, static_cast<int>(ranks / heads)}});
}

// An axis that the mesh lacks may be meant for another mesh, but not a part of a product.
absl::Status CheckProducts(const DeviceMesh& mesh, const TensorParallelOptions& options) {
  for (const std::string& name :
       {options.axis, options.data_axis, options.expert_axis, options.context_axis}) {
    if (!absl::StrContains(name, '*')) continue;
    const absl::Status status = mesh.Find(name).status();
    if (!status.ok()) return InvalidArgument({"PlanTensorParallel: ", status.message()});
  }
  return absl::OkStatus();
}

// Those axes of the options that the mesh has.
internal::ModelAxes AxesOn(const DeviceMesh& mesh, const TensorParallelOptions& options,
                           const internal::ModelConfig& config) {
  const auto if_there = [&](const std::string& axis) { return mesh.Find(axis).ok() ? axis : ""; };
  internal::ModelAxes axes;
  axes.tensor = if_there(options.axis);
  axes.sequence_parallel = options.sequence_parallel;
  axes.data = if_there(options.data_axis);
  axes.expert = if_there(options.expert_axis);
  axes.context = if_there(options.context_axis);
  axes.context_pattern = options.context_pattern;
  axes.pipeline = if_there(options.pipeline_axis);
  axes.stages = SizeOf(mesh, options.pipeline_axis);
  axes.blocks = internal::BlocksOf(config);
  return axes;
}

absl::StatusOr<TensorParallelism> PlanOn(const DeviceMesh& mesh, const internal::ModelPaths& paths,
                                         const TensorParallelOptions& options,
                                         const internal::ModelAxes& axes) {
  DT_RETURN_IF_ERROR(CheckProducts(mesh, options));
  absl::StatusOr<ParallelPlan> plan = internal::PlanModel(paths, axes);
  if (plan.ok()) return TensorParallelism{mesh, *std::move(plan)};
  return InvalidArgument({"PlanTensorParallel: ", plan.status().message()});
}

}  // namespace

std::optional<DeviceMesh> GetTpMesh(const DeviceMesh& mesh, absl::string_view axis) {
  if (!mesh.Find(axis).ok()) return std::nullopt;
  absl::StatusOr<DeviceMesh> slice = mesh.Slice({std::string(axis)});
  return slice.ok() ? std::optional<DeviceMesh>(*std::move(slice)) : std::nullopt;
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(const TransformerConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_RETURN_IF_ERROR(config.Validate());
  internal::ModelAxes axes = AxesOn(mesh, options, config);
  const internal::ModelPaths paths = internal::PathsOf(config);
  const int64_t ranks = SizeOf(mesh, options.axis);
  if (ranks <= config.kv_heads) return PlanOn(mesh, paths, options, axes);
  if (config.fused_projections) {
    return InvalidArgument({"PlanTensorParallel: ", absl::StrCat(config.kv_heads),
                            " key/value heads on ", absl::StrCat(ranks), " ranks of \"",
                            options.axis, "\" rest on several ranks each, which a weight of ",
                            "queries, keys and values together cannot; set fused_projections to "
                            "false"});
  }
  axes.key_value = internal::KeyValueAxesOf(options.axis);
  DT_ASSIGN_OR_RETURN(DeviceMesh cut,
                      CutForHeads(mesh, options.axis, axes.key_value, config.kv_heads, ranks));
  return PlanOn(cut, paths, options, axes);
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(const Gpt2Config& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_RETURN_IF_ERROR(config.Validate());
  return PlanOn(mesh, internal::kGpt2Paths, options, AxesOn(mesh, options, config));
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(const BertConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_RETURN_IF_ERROR(config.Validate());
  return PlanOn(mesh, internal::kBertPaths, options, AxesOn(mesh, options, config));
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(absl::string_view hugging_face_config_json,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::string type, ModelTypeOf(hugging_face_config_json));
  DT_ASSIGN_OR_RETURN(const internal::PlannedModel model, internal::FindPlannedModel(type));
  DT_ASSIGN_OR_RETURN(const internal::ModelConfig config,
                      model.read_config(hugging_face_config_json));
  return std::visit(
      [&](const auto& of_model) { return PlanTensorParallel(of_model, mesh, options); }, config);
}

}  // namespace dtensor
