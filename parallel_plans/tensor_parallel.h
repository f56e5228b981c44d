// ApplyTensorParallel: a model of dtensor/nn over all the axes that a mesh has, in one call.
//
//   DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=8"));
//   DT_ASSIGN_OR_RETURN(mesh, ApplyTensorParallel(model, context, mesh, {.seed = 1}));
//   DT_ASSIGN_OR_RETURN(auto ids, Distribute<int32_t>(context, mesh, placements, shape, values));
//
// What is split, on the axis tp: heads of attention, the MLP's hidden features, rows of the
// embedding and classes of the head (any number of them: 50257 too); between blocks the sequence.
// The embedding's sum is reduce-scattered to the sequence. All of it goes together: a tied
// embedding and head with sequence parallelism, too.
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

// The mesh of the axis that is called so, an axis or a group, alone; nothing where there is none.
// The same on every rank, as DeviceMesh::Slice, which has the line for this rank's own.
std::optional<DeviceMesh> GetTpMesh(const DeviceMesh& mesh, absl::string_view axis = "tp");

struct TensorParallelOptions {
  // Names of axes, or of groups. An axis that the mesh lacks has no part.
  std::string axis = "tp";          // splits layers
  std::string data_axis = "dp";     // splits the batch
  std::string context_axis = "cp";  // splits the sequence, as ContextParallel
  // Between blocks the sequence is split on `axis`: activations that are saved fall as 1/size, and
  // all-reduces become a reduce-scatter and an all-gather.
  bool sequence_parallel = true;
  std::string context_pattern = "zigzag";
  uint64_t seed = 0;
  bool allow_uneven = false;  // ParallelPlanOptions
};

// Where a model lies, and by which plan.
struct TensorParallelism {
  DeviceMesh mesh;
  ParallelPlan plan;
};

// What ApplyTensorParallel does, before it does it. For other ParallelPlanOptions, as recompute and
// keep_gathered: this, and plan.Apply on its mesh.
//
// If there are fewer key/value heads than ranks on `axis`, and their number divides the number of
// ranks, each key/value head is replicated on the ranks whose query heads use it. For this the
// returned mesh, on the same ranks, has two axes in place of `axis`: `<axis>_kv`, which shards the
// key/value heads, and `<axis>_rep`, over which their weights are replicated and the weights'
// gradients summed. The name `axis` then stands for both. This moves no activations. Errors:
// kInvalidArgument, with the remedy, if neither number divides the other; for fused_projections,
// whose key/value heads cannot be replicated; if `axis` is already a group of axes and would have
// to be split; if the mesh already has one of the two names; and those of config.Validate().
absl::StatusOr<TensorParallelism> PlanTensorParallel(const TransformerConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
// Of the others, whose keys are as many as their queries: the mesh is the given one.
absl::StatusOr<TensorParallelism> PlanTensorParallel(const Gpt2Config& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
absl::StatusOr<TensorParallelism> PlanTensorParallel(const BertConfig& config,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});
// Of the model that ModelFromJson makes of this configuration. Errors: those of FromJson, too.
absl::StatusOr<TensorParallelism> PlanTensorParallel(absl::string_view hugging_face_config_json,
                                                     const DeviceMesh& mesh,
                                                     const TensorParallelOptions& options = {});

// Places and materializes the model, and returns the mesh on which it lies, and its operands have
// to lie. Nothing is split where the mesh has no axis. Errors: those of PlanTensorParallel and of
// ParallelPlan::Apply.
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
