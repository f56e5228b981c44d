#include "dtensor/parallel_plans/explain/explain.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/explain/fold_paths.h"
#include "dtensor/parallel_plans/explain/fullest_rank.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

struct SimulatedStep {
  CountedStep counted;
  std::vector<int> candidates;
};

// The ring axes of all lines of the plan. Requires: a plan that fits the mesh.
AxisList RingAxes(const TrainingStep& step) {
  AxisList axes;
  for (const ParallelPlan::Line& line : step.plan.lines()) {
    const auto* const style = line.style.As<ContextParallel>();
    if (style == nullptr) continue;
    const absl::StatusOr<ContextPattern> pattern = ContextPattern::Parse(style->pattern);
    if (!pattern.ok()) continue;
    for (const int axis : pattern->RingAxes(step.mesh, style->axis)) {
      if (!absl::c_linear_search(axes, axis)) axes.push_back(axis);
    }
  }
  return axes;
}

absl::StatusOr<SimulatedStep> SimulateStep(const TrainingStep& step, int rank) {
  SimulatedStep out;
  const auto count = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(out.counted, CountStep(context, step));
    if (rank != 0) return absl::OkStatus();
    out.candidates = internal::FullestCandidates(context.specs(), step.mesh, RingAxes(step));
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(Simulate(rank, step.mesh.size(), count, {.cost = step.cost.On(step.mesh)}));
  return out;
}

std::vector<FoldedParameter> FoldParameters(const std::vector<ParameterFigures>& parameters) {
  std::vector<std::string> paths;
  for (const ParameterFigures& parameter : parameters) paths.push_back(parameter.path);
  const auto alike = [&](size_t a, size_t b) {
    const ParameterFigures &p = parameters[a], &q = parameters[b];
    return p.shape == q.shape && p.rests == q.rests && p.used == q.used && p.bytes == q.bytes &&
           p.trained == q.trained;
  };
  std::vector<FoldedParameter> folded;
  for (const internal::FoldedPath& fold : internal::FoldPaths(paths, alike)) {
    folded.push_back({parameters[fold.members[0]], static_cast<int64_t>(fold.members.size())});
    folded.back().figures.path = fold.path;
  }
  return folded;
}

// The step on the rank that holds the most. Appends the ranks that were simulated to find it.
absl::StatusOr<SimulatedStep> SimulateFullest(const TrainingStep& step,
                                              std::vector<int>& simulated) {
  DT_ASSIGN_OR_RETURN(SimulatedStep fullest, SimulateStep(step, 0));
  simulated.push_back(0);
  const std::vector<int> candidates = fullest.candidates;
  for (const int rank : candidates) {
    if (rank == 0) continue;
    simulated.push_back(rank);
    DT_ASSIGN_OR_RETURN(SimulatedStep one, SimulateStep(step, rank));
    const int64_t most = fullest.counted.figures.memory.peak;
    if (one.counted.figures.memory.peak > most) fullest = std::move(one);
  }
  return fullest;
}

// The memory of the step with the other choice of recomputation, of the rank that then holds the
// most.
absl::Status ExplainOtherwise(const TrainingStep& step, Explanation& out) {
  TrainingStep other = step;
  if (step.recompute.empty()) {
    DT_ASSIGN_OR_RETURN(out.usual_recompute, UsualRecompute(step));
    if (out.usual_recompute.empty()) return absl::OkStatus();
    other.recompute = out.usual_recompute;
  } else {
    other.recompute.clear();
  }
  std::vector<int> simulated;
  DT_ASSIGN_OR_RETURN(const SimulatedStep fullest, SimulateFullest(other, simulated));
  out.otherwise = fullest.counted.figures.memory;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Explanation> ExplainStep(const TrainingStep& step) {
  Explanation out;
  DT_ASSIGN_OR_RETURN(SimulatedStep fullest, SimulateFullest(step, out.simulated));
  out.rank = std::move(fullest.counted.figures);
  out.modules = Fold(out.rank.modules);
  out.parameters = FoldParameters(fullest.counted.parameters);
  out.placed = Fold(fullest.counted.placed);
  DT_RETURN_IF_ERROR(ExplainOtherwise(step, out));
  return out;
}

}  // namespace dtensor
