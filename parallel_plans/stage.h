// Stage: a module, and all that is inside it, lies on one part of the mesh: on the ranks that have
// the coordinate `index` on the axis. So a model is cut into the stages of a pipeline.
//
//   DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse("pp=2,dp=2,tp=2"));
//   ParallelPlan plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   plan.Add({"model.embed_tokens", Stage("pp", 0)});
//   plan.Add({"model.layers.{0,1}", Stage("pp", 0)});
//   plan.Add({"model.layers.{2,3}", Stage("pp", 1)});
//   plan.Add({"{model.norm,lm_head}", Stage("pp", 1)});
//   DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
//
// A stage's mesh is mesh.At("pp", index), here ["dp"=2, "tp"=2]@0..3 and @4..7. Other lines for
// these modules apply on that mesh. A call of the module brings its operands there; the result
// stays there until a module of the next stage is called with it. A stage inside another one takes
// precedence. If a plan has such lines, each module with parameters must be in a stage.
//
// All ranks call the whole model, and give all its parameters to ReduceGradients, ClipByGlobalNorm
// and the optimizer: a write is a call, too. Those that are not in a stage compute nothing there,
// and go on at once (distributed_tensor.h). So a pipeline fills by itself if the batch is cut:
//
//   TensorOr loss = LossOf(model, micro_batches[0]);  // a scalar: Mean(CrossEntropy(...), {0, 1})
//   for (size_t i = 1; i < micro_batches.size(); ++i) {
//     loss = Add(loss, LossOf(model, micro_batches[i]));
//   }
//   DT_RETURN_IF_ERROR(Backward(loss));
//
// While stage 1 computes the first micro-batch, stage 0 computes the second: GPipe's schedule.
// Backward walks the micro-batches in the reverse order, likewise. Each stage is idle for
// (s - 1) / (n + s - 1) of the time, with n micro-batches on s stages. Each rank keeps what its
// stage saved of all micro-batches until Backward; for each module that is recomputed
// (ParallelPlanOptions::recompute), this is one activation for each micro-batch. RunPipeline
// (pipeline.h) keeps fewer activations (1F1B).
//
// The result of the model is on the last stage's mesh: what it is compared with has to be there too
// (labels.Redistribute(*labels.layout().OnMesh(logits.mesh()))).
#ifndef DTENSOR_PARALLEL_PLANS_STAGE_H_
#define DTENSOR_PARALLEL_PLANS_STAGE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A style, like those in styles.h. Its text: Stage("pp", 1). The axis is one axis of the mesh, no
// group.
struct Stage {
  Stage(std::string axis, int64_t index) : axis(std::move(axis)), index(index) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<Stage> Read(const StyleText& text);
  friend bool operator==(const Stage&, const Stage&) = default;

  std::string axis;
  int64_t index;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_STAGE_H_
