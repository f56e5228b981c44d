#include "dtensor/parallel_plans/tensor_parallel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/transformer_plan.h"
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
                                       int64_t heads, int64_t ranks) {
  if (ranks % heads != 0) {
    return InvalidArgument({"PlanTensorParallel: ", absl::StrCat(heads), " key/value heads and ",
                            absl::StrCat(ranks), " ranks on \"", axis,
                            "\": one has to divide the other; choose an axis of another size"});
  }
  const std::string of_heads = absl::StrCat(axis, "_kv"), of_copies = absl::StrCat(axis, "_rep");
  for (const std::string& name : {of_heads, of_copies}) {
    if (!mesh.Find(name).ok()) continue;
    return InvalidArgument({"PlanTensorParallel: with ", absl::StrCat(heads),
                            " key/value heads on ", absl::StrCat(ranks), " ranks \"", axis,
                            "\" is cut into \"", of_heads, "\" and \"", of_copies,
                            "\", and the mesh ", mesh.ToString(), " has a \"", name,
                            "\" already; give that another name"});
  }
  return mesh.SplitAxis(
      axis, {{of_heads, static_cast<int>(heads)}, {of_copies, static_cast<int>(ranks / heads)}});
}

// Places tokens over the axes that shard the batch and the sequence.
void AddTokens(const DeviceMesh& mesh, const TensorParallelOptions& options, const char* attention,
               ParallelPlan& plan) {
  if (mesh.Find(options.data_axis).ok()) plan.Add({"", DataParallel(options.data_axis)});
  if (mesh.Find(options.context_axis).ok()) {
    plan.Add(ContextParallelPlan(options.context_axis, options.context_pattern, attention));
  }
}

// For a model whose layers `plan` shards, on the given mesh.
TensorParallelism PlanOnMesh(const DeviceMesh& mesh, const TensorParallelOptions& options,
                             ParallelPlan (*plan)(std::string, bool), const char* attention) {
  TensorParallelism out{mesh, ParallelPlan()};
  if (SizeOf(mesh, options.axis) > 0) out.plan = plan(options.axis, options.sequence_parallel);
  AddTokens(mesh, options, attention, out.plan);
  return out;
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
  TensorParallelism out{mesh, ParallelPlan()};
  const int64_t ranks = SizeOf(mesh, options.axis);
  KeyValueAxes axes;
  if (ranks > config.kv_heads && config.fused_projections) {
    return InvalidArgument({"PlanTensorParallel: ", absl::StrCat(config.kv_heads),
                            " key/value heads on ", absl::StrCat(ranks), " ranks of \"",
                            options.axis, "\" rest on several ranks each, which a weight of ",
                            "queries, keys and values together cannot; set fused_projections to "
                            "false"});
  }
  if (ranks > config.kv_heads) {
    DT_ASSIGN_OR_RETURN(out.mesh, CutForHeads(mesh, options.axis, config.kv_heads, ranks));
    axes = {absl::StrCat(options.axis, "_kv"), absl::StrCat(options.axis, "_rep")};
  }
  if (ranks > 0) out.plan = TensorParallelPlan(options.axis, options.sequence_parallel, axes);
  AddTokens(mesh, options, kTransformerAttention, out.plan);
  return out;
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(const Gpt2Config& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_RETURN_IF_ERROR(config.Validate());
  return PlanOnMesh(mesh, options, Gpt2TensorParallelPlan, kGpt2Attention);
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(const BertConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  DT_RETURN_IF_ERROR(config.Validate());
  return PlanOnMesh(mesh, options, BertTensorParallelPlan, kBertAttention);
}

absl::StatusOr<TensorParallelism> PlanTensorParallel(absl::string_view hugging_face_config_json,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options) {
  const auto plan = [&](const auto& config) -> absl::StatusOr<TensorParallelism> {
    DT_RETURN_IF_ERROR(config.status());
    return PlanTensorParallel(*config, mesh, options);
  };
  DT_ASSIGN_OR_RETURN(const std::string type, ModelTypeOf(hugging_face_config_json));
  if (type == "bert") return plan(BertConfig::FromJson(hugging_face_config_json));
  if (type == "gpt2") return plan(Gpt2Config::FromJson(hugging_face_config_json));
  return plan(TransformerConfig::FromJson(hugging_face_config_json));
}

}  // namespace dtensor
