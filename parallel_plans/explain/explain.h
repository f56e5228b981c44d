// ExplainStep: what a training step of a model costs under a plan, before it runs anywhere.
//
//   TrainingStep step;
//   step.model = [config] { return std::make_unique<Transformer>(config); };
//   step.plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
//   step.mesh = *DeviceMesh::Parse("dp=8,tp=8");
//   step.batch = 64, step.sequence = 4096, step.dtype = DType::kBF16;
//   DT_ASSIGN_OR_RETURN(const Explanation explanation, ExplainStep(step));
//   std::cout << explanation.ToString();
//
// There is no model of the step: it is the program, run as one rank on a device without memory and
// with a communicator that counts (Simulate, context.h). So what is predicted is what a run counts:
// collectives, the bytes that the rank receives, and what its tensors take, to the byte. Only time
// is a model's, that of the rates in `cost` (simulated_clock.h).
//
// Figures are those of one rank: the one that holds the most. Where sizes divide, ranks are alike;
// where they do not, those are simulated whose shards are the largest by the layouts of the step's
// tensors. Under ContextParallel ranks are not alike that have other places in a ring: in either
// case there is a rank of each place (of more than 16 places, of 16 that are evenly spread). The
// fullest of all that are simulated is taken.
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
#include "dtensor/runtime/core/export.h"
#include "dtensor/trace/figure_text.h"

namespace DTENSOR_EXPORT dtensor {

// A parameter, or those of equal layers that lie alike.
struct FoldedParameter {
  ParameterFigures figures;  // of one of them; the path is the folded one's
  int64_t parameters = 1;
};

struct Explanation {
  // Of the fullest rank, with modules as they are; and with equal layers folded into one.
  RankFigures rank;
  std::vector<ModuleFigures> modules;
  std::vector<FoldedParameter> parameters;
  std::vector<PlacedModule> placed;  // the same modules with placements and edges, folded
  std::vector<int> simulated;        // ranks, ascending
  // The same step's memory with the other choice: without recomputation if the step has some; else
  // where the modules of `usual_recompute` recompute. None: the model has no lists.
  std::vector<std::string> usual_recompute;
  std::optional<MemoryFigures> otherwise;

  // For people: several lines. The whole step; then what each module costs, and where parameters
  // rest; or in place of these where each module has its parameters and activations.
  std::string ToString() const;
  std::string PlacedText() const;
};

// No communication, and no world: any thread calls it. Errors: those of CountStep.
absl::StatusOr<Explanation> ExplainStep(const TrainingStep& step);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_EXPLAIN_H_
