#include "dtensor/parallel_plans/explain/explain.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/explain/fold_paths.h"
#include "dtensor/parallel_plans/explain/fullest_rank.h"
#include "dtensor/parallel_plans/pipeline.h"
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

// The axis of the plan's stages; -1: it has none. Requires: a plan that fits the mesh.
int StageAxis(const TrainingStep& step) {
  const absl::StatusOr<std::string> name = StageAxisOf(step.plan);
  if (!name.ok() || name->empty()) return -1;
  return step.mesh.AxisIndex(*name).value_or(-1);
}

absl::StatusOr<SimulatedStep> SimulateStep(const TrainingStep& step, int rank) {
  SimulatedStep out;
  const auto count = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(out.counted, CountStep(context, step));
    if (rank != 0) return absl::OkStatus();
    out.candidates =
        internal::FullestCandidates(context.specs(), step.mesh, RingAxes(step), StageAxis(step));
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

StageFigures StageFiguresOf(int64_t stage, const CountedStep& counted) {
  const RankFigures& rank = counted.figures;
  StageFigures figures = {.stage = stage, .rank = rank.rank};
  figures.parameters = rank.memory.parameters;
  figures.peak = rank.memory.peak;
  const StepPhases phases = rank.phases();
  for (const auto& [axes, bytes] : ReceivedBytes(phases)) {
    figures.received += bytes;
    if (absl::StrContains(axes, "->")) figures.from_stages += bytes;  // between two meshes
  }
  figures.update_seconds = Of(phases, StepPhase::kUpdate).seconds();
  figures.micro_batch = counted.micro_batch;
  return figures;
}

// Keeps the fullest rank of each stage.
void KeepFullest(const TrainingStep& step, const CountedStep& counted,
                 std::map<int64_t, StageFigures>& stages) {
  const RankFigures& rank = counted.figures;
  const int axis = StageAxis(step);
  if (axis < 0) return;
  const int64_t stage = step.mesh.Coordinate(rank.rank)[axis];
  const auto [it, fresh] = stages.try_emplace(stage);
  if (fresh || rank.memory.peak > it->second.peak) it->second = StageFiguresOf(stage, counted);
}

// The step on the rank that holds the most. `out` gets the ranks that were simulated to find it,
// and the stages.
absl::StatusOr<SimulatedStep> SimulateFullest(const TrainingStep& step, Explanation& out) {
  DT_ASSIGN_OR_RETURN(SimulatedStep fullest, SimulateStep(step, 0));
  const std::vector<int> candidates = fullest.candidates;
  std::map<int64_t, StageFigures> stages;
  out.simulated.push_back(0);
  KeepFullest(step, fullest.counted, stages);
  for (const int rank : candidates) {
    if (rank == 0) continue;
    out.simulated.push_back(rank);
    DT_ASSIGN_OR_RETURN(SimulatedStep one, SimulateStep(step, rank));
    KeepFullest(step, one.counted, stages);
    const int64_t most = fullest.counted.figures.memory.peak;
    if (one.counted.figures.memory.peak > most) fullest = std::move(one);
  }
  for (const auto& [stage, figures] : stages) out.stages.push_back(figures);
  return fullest;
}

// The memory of the step with the other choice of recomputation, of the rank that then holds the
// most; in a pipeline, of the same rank.
absl::Status ExplainOtherwise(const TrainingStep& step, Explanation& out) {
  TrainingStep other = step;
  if (step.recompute.empty()) {
    DT_ASSIGN_OR_RETURN(out.usual_recompute, UsualRecompute(step));
    if (out.usual_recompute.empty()) return absl::OkStatus();
    other.recompute = out.usual_recompute;
  } else {
    other.recompute.clear();
  }
  Explanation unused;
  DT_ASSIGN_OR_RETURN(const SimulatedStep fullest, out.stages.empty()
                                                       ? SimulateFullest(other, unused)
                                                       : SimulateStep(other, out.rank.rank));
  out.otherwise = fullest.counted.figures.memory;
  return absl::OkStatus();
}

}  // namespace

double Explanation::step_seconds() const {
  if (stages.empty()) return SecondsOf(rank.phases());
  std::vector<StageSeconds> seconds;
  double update = 0;
  for (const StageFigures& stage : stages) {
    seconds.push_back(stage.micro_batch);
    update = std::max(update, stage.update_seconds);
  }
  return PipelineSeconds(schedule, seconds, micro_batches) + update;
}

double Explanation::idle_share() const {
  double busiest = 0;
  for (const StageFigures& stage : stages) {
    busiest = std::max(busiest, static_cast<double>(micro_batches) * stage.micro_batch.all() +
                                    stage.update_seconds);
  }
  const double all = step_seconds();
  return stages.empty() || all == 0 ? 0 : 1 - busiest / all;
}

absl::StatusOr<Explanation> ExplainStep(const TrainingStep& step) {
  Explanation out;
  out.micro_batches = step.micro_batches;
  out.schedule = step.schedule;
  DT_ASSIGN_OR_RETURN(SimulatedStep fullest, SimulateFullest(step, out));
  out.rank = std::move(fullest.counted.figures);
  out.modules = Fold(out.rank.modules);
  out.parameters = FoldParameters(fullest.counted.parameters);
  out.placed = Fold(fullest.counted.placed);
  DT_RETURN_IF_ERROR(ExplainOtherwise(step, out));
  return out;
}

}  // namespace dtensor
