// RunPipeline: forward and backward of a batch, cut into micro-batches, on the stages of a pipeline
// (stage.h), in the order that Megatron calls 1F1B, or by a zero-bubble schedule.
//
//   DT_ASSIGN_OR_RETURN(
//       const DistributedTensor loss,
//       RunPipeline(context, mesh, "pp", n, [&](int64_t i) -> TensorOr {
//         DT_ASSIGN_OR_RETURN(const DistributedTensor logits, model(Ids(i)));
//         DT_ASSIGN_OR_RETURN(const DistributedTensor targets, Targets(i, logits.mesh()));
//         return Scale(Mean(CrossEntropy(logits, targets), {0, 1}), 1.0 / n);
//       }));
//   DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
//
// Each rank computes some micro-batches forward, more of them the earlier its stage is, then one
// backward and one forward in turn, and at the end what is left backward (pipeline_schedule.h). So
// a rank keeps what its stage has saved of at most as many micro-batches as there are stages, where
// Backward of the sum of all losses keeps all of them. Stages are idle for the same share of the
// time in both: (s - 1) / (n + s - 1) for n micro-batches on s stages; with
// PipelineSchedule::kZeroBubble for about a third of that. The gradients are the same but for the
// order in which those of the micro-batches are added. Without stages, forward and backward of each
// micro-batch come one after the other: gradient accumulation.
#ifndef DTENSOR_PARALLEL_PLANS_PIPELINE_H_
#define DTENSOR_PARALLEL_PLANS_PIPELINE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/pipeline_schedule.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t bucket_bytes = 0;  // as BackwardOptions::bucket_bytes, for the last micro-batch alone
  // Is called before each step of this rank, in the order of PipelineSteps(), with `sends_wait`
  // where ranks do not read each other's memory (Communicator::staging_bytes). Null: nothing is.
  std::function<void(const PipelineStep& step)> on_step = nullptr;
};

// The axis whose coordinates are the stages of the plan (stage.h); empty if it has none. Errors:
// kInvalidArgument for stages on several axes.
absl::StatusOr<std::string> StageAxisOf(const ParallelPlan& plan);

// Calls loss(i) for each micro-batch, in order, and Backward on what it returns; gradients add up
// in the leaves. Returns the sum of the losses, detached, on their mesh. That is usually the last
// stage's: on other ranks the sum has no elements (Redistribute it to read it there). The stages
// are the coordinates on `axis` of `mesh`, in this order (empty: there are no stages): activations
// go from each stage to the next one only. All ranks of the mesh call it; `loss` computes the whole
// loss on each of them, as without stages (distributed_tensor.h). `loss` moves nothing between
// stages with `async`, and calls no module with an operand that `axis` shards, or on which it is
// Partial, or that is on another stage than the module's and the one before. (Backward of the sum
// of all losses takes these.) Gradients have the same bits with both schedules.
//
// Errors: kInvalidArgument if the mesh has no such axis, or a group of axes of this name; if it
// does not have this rank; for fewer than 1 micro-batches, or more than 2^20, or buckets below 0
// bytes; with stages, in the `loss` of another one with stages; for such an operand, and for a loss
// of another Context. Those of `loss` and of Backward: with stages, after the first micro-batch
// they fail the world, because a refusal, though the same on all ranks, then meets each stage at
// another step. An exception that leaves `loss` or on_step passes through, and fails the world with
// its text.
TensorOr RunPipeline(Context& context, const DeviceMesh& mesh, absl::string_view axis,
                     int64_t micro_batches,
                     const std::function<TensorOr(int64_t micro_batch)>& loss,
                     const PipelineOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PIPELINE_H_
