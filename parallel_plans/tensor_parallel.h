// ApplyTensorParallel: shards a model of dtensor/nn over all axes of a mesh, in one call.
//
//   DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=8"));
//   DT_ASSIGN_OR_RETURN(mesh, ApplyTensorParallel(model, context, mesh, {.seed = 1}));
//   DT_ASSIGN_OR_RETURN(auto ids, Distribute<int32_t>(context, mesh, placements, shape, values));
//
// On the axis tp these are sharded: the heads of attention, the hidden features of the MLP or of a
// mixture's experts, the rows of the embedding and the classes of the head (any number of them:
// 50257 too), and, between blocks, the sequence. The embedding's sum is reduce-scattered to the
// sequence. All of these can be combined: a tied embedding and head with sequence parallelism, too.
#ifndef DTENSOR_PARALLEL_PLANS_TENSOR_PARALLEL_H_
#define DTENSOR_PARALLEL_PLANS_TENSOR_PARALLEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/status.h"

namespace DTENSOR_EXPORT dtensor {

// The mesh that consists of the axis or group with this name only; nullopt if there is none. The
// result is the same on every rank, as with DeviceMesh::Slice, whose comment shows how to get the
// slice that this rank is on.
std::optional<DeviceMesh> GetTpMesh(const DeviceMesh& mesh, absl::string_view axis = "tp");

struct TensorParallelOptions {
  // Names of axes, of groups, or products as in "a*b" (DeviceMesh::Find). Axes that the mesh lacks
  // are ignored, but in a product.
  std::string axis = "tp";           // shards layers
  std::string data_axis = "dp";      // shards the batch
  std::string expert_axis = "ep";    // shards the batch and the experts, as ExpertParallelPlan
  std::string context_axis = "cp";   // shards the sequence, as ContextParallel
  std::string pipeline_axis = "pp";  // cuts the model into stages, as PipelinePlan; one axis
  // Between blocks the sequence is sharded on `axis`. Saved activations shrink to 1/size, and each
  // all-reduce becomes a reduce-scatter and an all-gather.
  bool sequence_parallel = true;
  std::string context_pattern = "zigzag";
  uint64_t seed = 0;
  bool allow_uneven = false;  // ParallelPlanOptions
};

// The mesh on which a model lies, and the plan by which it is sharded.
struct TensorParallelism {
  DeviceMesh mesh;
  ParallelPlan plan;
};

// The plan and the mesh that ApplyTensorParallel would use; changes nothing. To set other
// ParallelPlanOptions, such as recompute and keep_gathered, call this and then plan.Apply on the
// returned mesh.
//
// If there are fewer key/value heads than ranks on `axis`, and their number divides the number of
// ranks, each key/value head is replicated on the ranks whose query heads use it. For this the
// returned mesh, on the same ranks, has two axes in place of `axis`: `<axis>_kv`, which shards the
// key/value heads, and `<axis>_rep`, over which their weights are replicated and the weights'
// gradients summed. The name `axis` then stands for both. This moves no activations. Errors:
// kInvalidArgument, with the remedy, if neither number divides the other; for fused_projections,
// whose key/value heads cannot be replicated; for an expert_axis, if the model has no experts; if
// `axis` is already a group of axes and would have to be split; if the mesh already has one of the
// two names, or lacks an axis of a product; for more ranks on pipeline_axis than the model has
// blocks; and those of config.Validate().
absl::StatusOr<TensorParallelism> PlanTensorParallel(const TransformerConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
// The same for the other models, which have as many key/value heads as query heads. The mesh is the
// given one.
absl::StatusOr<TensorParallelism> PlanTensorParallel(const Gpt2Config& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
absl::StatusOr<TensorParallelism> PlanTensorParallel(const BertConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
// The same for the model that ModelFromJson makes of this configuration. Errors: also those of
// FromJson.
absl::StatusOr<TensorParallelism> PlanTensorParallel(absl::string_view hugging_face_config_json,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});

// Places and materializes the model. Returns the mesh on which it lies; its operands must lie on
// that mesh, too. With stages, its results are on the last stage's mesh. If the mesh lacks an axis,
// nothing is sharded over it. Errors: those of PlanTensorParallel and of ParallelPlan::Apply.
// Requires of Model: one of Transformer, Gpt2, BertModel.
template <typename Model>
absl::StatusOr<DeviceMesh> ApplyTensorParallel(Model& model, Context& context,
                                               const DeviceMesh& mesh,
                                               const TensorParallelOptions& options = {}) {
  DT_ASSIGN_OR_RETURN(const TensorParallelism parallelism,
                      PlanTensorParallel(model.config(), mesh, options));
  DT_RETURN_IF_ERROR(
      parallelism.plan.Apply(model, context, parallelism.mesh,
                             {.seed = options.seed, .allow_uneven = options.allow_uneven}));
  return parallelism.mesh;
}

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TENSOR_PARALLEL_H_
