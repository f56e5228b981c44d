// A training step of any model under a plan, and what a rank counts in it. The same program on
// ranks that are threads and on a simulated one.
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
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

enum class StepOptimizer : uint8_t { kAdamW, kSgd, kNone };

// The loss of a model, a scalar. `ids` and `targets` are i32 [batch, sequence].
using StepLoss = std::function<TensorOr(Module& model, const DistributedTensor& ids,
                                        const DistributedTensor& targets)>;
// The mean cross-entropy of a model that makes logits [batch, sequence, classes] of token ids.
TensorOr NextTokenLoss(Module& model, const DistributedTensor& ids,
                       const DistributedTensor& targets);

// The sum of the means of a model's results, whose operands are all `ids`: for a model without a
// head, as BertModel, in place of a loss.
TensorOr MeanOfResults(Module& model, const DistributedTensor& ids,
                       const DistributedTensor& targets);

struct TrainingStep {
  // Makes the model anew, without memory: a plan is applied to each once.
  std::function<absl::StatusOr<std::unique_ptr<Module>>()> model;
  ParallelPlan plan;
  DeviceMesh mesh;  // of all ranks
  int64_t batch = 1, sequence = 1;
  DType dtype = DType::kF32;  // of parameters and activations
  // With parameters of 16 bits it keeps f32 ones beside its states.
  StepOptimizer optimizer = StepOptimizer::kAdamW;
  // Of the gradients' global norm. 0, or without an optimizer: they are not clipped.
  double clip = 1;
  // Patterns of paths (parallel_plan.h): these modules recompute.
  std::vector<std::string> recompute;
  bool allow_uneven = false;  // ParallelPlanOptions
  CostModel cost;             // by which a simulated rank's time passes
  StepLoss loss = NextTokenLoss;
};

struct CountedStep {
  RankFigures figures;
  std::vector<ParameterFigures> parameters;
  std::vector<PlacedModule> placed;
};

// Makes the model, makes one step for what is done once (a cache, the order of gathers), and counts
// the next one, which is like all later ones. Then runs forward once more, for who saved what.
// Collective; the traffic of `context` is reset. Errors: kInvalidArgument for sizes below 1, a
// pattern that matches no module, and what the plan and the model refuse; failures.
absl::StatusOr<CountedStep> CountStep(Context& context, const TrainingStep& step);

// The modules whose recomputation is the usual one, as patterns: those of the model's lists, as
// "model.layers.*".
absl::StatusOr<std::vector<std::string>> UsualRecompute(const TrainingStep& step);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_TRAINING_STEP_H_
