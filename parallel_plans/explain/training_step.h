// A training step of any model under a plan, and what a rank counts in it. The program is the same
// on ranks that are threads and on a simulated rank.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_TRAINING_STEP_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_TRAINING_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/explain/placed_modules.h"
#include "dtensor/parallel_plans/explain/step_figures.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/pipeline_schedule.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// kMuon: Muon of the matrices in the model's lists of modules, as model.layers.0.mlp.up_proj has
// one, and AdamW of all others: of norms, biases, embeddings and heads.
enum class StepOptimizer : uint8_t { kAdamW, kMuon, kSgd, kNone };

// Computes a model's loss, a scalar. `ids` and `targets` are i32 [batch, sequence].
using StepLoss = std::function<TensorOr(Module& model, const DistributedTensor& ids,
                                        const DistributedTensor& targets)>;
// The mean cross-entropy, for a model that computes logits [batch, sequence, classes] from token
// ids. It takes the targets to the mesh where the logits are.
TensorOr NextTokenLoss(Module& model, const DistributedTensor& ids,
                       const DistributedTensor& targets);

// The sum of the means of a model's results; every operand of the model gets `ids`. It stands in
// for a loss if the model has no head, such as BertModel.
TensorOr MeanOfResults(Module& model, const DistributedTensor& ids,
                       const DistributedTensor& targets);

struct TrainingStep {
  // Creates a new model without memory. It may be called several times: a plan is applied to each
  // model once.
  std::function<absl::StatusOr<std::unique_ptr<Module>>()> model;
  ParallelPlan plan;
  DeviceMesh mesh;  // of all ranks
  int64_t batch = 1, sequence = 1;
  // The parts of the batch, one loss each. If the plan has stages, they go through the pipeline
  // (RunPipeline); if not, forward and backward of one come after those of the other, and gradients
  // add up.
  int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;  // of the stages
  DType dtype = DType::kF32;                            // of parameters and activations
  // With 16-bit parameters it also keeps f32 masters.
  StepOptimizer optimizer = StepOptimizer::kAdamW;
  // The bound on the gradients' global norm. 0, or without an optimizer: no clipping.
  double clip = 1;
  // Patterns of the paths of modules to recompute (parallel_plan.h).
  std::vector<std::string> recompute;
  bool allow_uneven = false;  // ParallelPlanOptions
  CostModel cost;             // determines the time of a simulated rank
  StepLoss loss = NextTokenLoss;
};

struct CountedStep {
  RankFigures figures;
  // Of a simulated rank: how long it takes for one of the micro-batches, without waits for other
  // stages. What is not put off is in `inputs`.
  StageSeconds micro_batch;
  std::vector<ParameterFigures> parameters;
  std::vector<PlacedModule> placed;
};

// Creates the model, makes one step so that work done only once (filling a cache, learning the
// order of gathers) is over, and counts the next step, which is like all later ones. Then runs
// forward of a micro-batch once more to find which module saved what. Collective; the traffic
// counters of `context` are reset. Errors: kInvalidArgument for sizes below 1, micro_batches that
// do not divide the batch, stages (stage.h) on several axes, a pattern that matches no module, and
// what the plan and the model refuse; failures.
absl::StatusOr<CountedStep> CountStep(Context& context, const TrainingStep& step);

// Patterns of the modules that are usually recomputed: those of the model's lists, such as
// "model.layers.*".
absl::StatusOr<std::vector<std::string>> UsualRecompute(const TrainingStep& step);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_TRAINING_STEP_H_
