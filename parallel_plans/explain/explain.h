// ExplainStep: predicts what a training step of a model costs under a plan, before it runs
// anywhere.
//
//   TrainingStep step;
//   step.model = [config] { return std::make_unique<Transformer>(config); };
//   step.plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   step.mesh = *DeviceMesh::Parse("dp=8,tp=8");
//   step.batch = 64, step.sequence = 4096, step.dtype = DType::kBF16;
//   DT_ASSIGN_OR_RETURN(const Explanation explanation, ExplainStep(step));
//   std::cout << explanation.ToString();
//
// The step is not modelled: the program itself runs, as one rank on a device without memory and
// with a communicator that only counts (Simulate, context.h). So what is predicted is what a run
// counts: collectives, the bytes that the rank receives, and the memory of its tensors, to the
// byte. Only the time comes from a model, the rates in `cost` (simulated_clock.h).
//
// Figures are those of one rank: the one that holds the most. If all sizes divide evenly, the ranks
// are alike. If not, the ranks are simulated whose shards are the largest by the layouts of the
// step's tensors. Under ContextParallel, ranks at different places in a ring differ too, so in
// either case one rank of each place is simulated (of 16 evenly spread places if there are more
// than 16). The figures are those of the fullest rank among all that are simulated.
//
// The stages of a pipeline have unlike work, too: of each stage the fullest rank is simulated, and
// `stages` says what it does. A simulated rank never waits for another stage. The time of the whole
// step is estimated from the stages' times, in which what a stage receives has its share:
// PipelineSeconds (pipeline_schedule.h), then the longest update. No stage waits until another one
// receives, as on one host.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_EXPLAIN_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_EXPLAIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/parallel_plans/explain/placed_modules.h"
#include "dtensor/parallel_plans/explain/step_figures.h"
#include "dtensor/parallel_plans/explain/training_step.h"
#include "dtensor/parallel_plans/pipeline_schedule.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/trace/figure_text.h"

namespace DTENSOR_EXPORT dtensor {

// A parameter, or the corresponding parameters of equal layers that are placed alike.
struct FoldedParameter {
  ParameterFigures figures;  // of one of them; the path is the folded one's
  int64_t parameters = 1;
};

// A stage of a pipeline, by its fullest rank.
struct StageFigures {
  int64_t stage = 0;
  int rank = 0;
  int64_t parameters = 0, peak = 0;       // bytes, as MemoryFigures
  int64_t received = 0, from_stages = 0;  // bytes in a step; the latter from ranks of other stages
  StageSeconds micro_batch;               // forward and backward of one micro-batch
  double update_seconds = 0;
};

struct Explanation {
  // `rank` has the figures of the fullest rank, module by module; in the lists below equal layers
  // are folded into one.
  RankFigures rank;
  std::vector<ModuleFigures> modules;
  std::vector<FoldedParameter> parameters;
  std::vector<PlacedModule> placed;  // the same modules with placements and edges, folded
  std::vector<int> simulated;        // ranks, ascending
  // The same step's memory with the other choice: without recomputation if the step has some; else
  // with recomputation of the modules in `usual_recompute`. In a pipeline: on the same rank.
  // Nullopt: the model has no lists.
  std::vector<std::string> usual_recompute;
  std::optional<MemoryFigures> otherwise;
  // One for each stage, ascending; empty if the plan has no stages.
  std::vector<StageFigures> stages;
  int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;

  // The predicted time of the step: of the pipeline, as above, or of the fullest rank.
  double step_seconds() const;
  // The share of the pipeline's time in which its busiest stage is idle; 0 without stages.
  double idle_share() const;

  // Text for people, of several lines. Both begin with the whole step. ToString goes on with what
  // each module costs and where parameters are stored, PlacedText with where each module has its
  // parameters and activations.
  std::string ToString() const;
  std::string PlacedText() const;
};

// No communication. It needs no world and may be called from any thread. Errors: those of
// CountStep.
absl::StatusOr<Explanation> ExplainStep(const TrainingStep& step);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_EXPLAIN_H_
