#include "dtensor/parallel_plans/explain/step_figures.h"

#include <algorithm>

#include "dtensor/parallel_plans/explain/fold_paths.h"

namespace dtensor {
absl::string_view ToString(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kUpdate:
      return "update";
  }
  return "";
}

std::vector<std::pair<std::string, int64_t>> PartsOf(const MemoryFigures& memory) {
  return {{"parameters", memory.parameters}, {"gathered", memory.gathered},
          {"gradients", memory.gradients},   {"optimizer", memory.optimizer},
          {"inputs", memory.inputs},         {"activations", memory.activations}};
}

StepPhases RankFigures::phases() const {
  StepPhases sum;
  for (const ModuleFigures& module : modules) {
    for (const StepPhase phase : kStepPhases) {
      Add(Of(module.phases, phase), module.modules, Of(sum, phase));
    }
  }
  return sum;
}

void Add(const PhaseFigures& more, int64_t times, PhaseFigures& sum) {
  for (const auto& [key, traffic] : more.traffic) {
    CommunicatorTraffic& into = sum.traffic[key];
    into.calls += times * traffic.calls;
    into.messages += times * traffic.messages;
    into.bytes += times * traffic.bytes;
  }
  const auto n = static_cast<double>(times);
  sum.compute_seconds += n * more.compute_seconds;
  sum.communication_seconds += n * more.communication_seconds;
  sum.exposed_seconds += n * more.exposed_seconds;
}

double SecondsOf(const StepPhases& phases) {
  double seconds = 0;
  for (const PhaseFigures& phase : phases) seconds += phase.seconds();
  return seconds;
}

bool CountedAlike(const ModuleFigures& a, const ModuleFigures& b) {
  const auto same_traffic = [](const PhaseFigures& p, const PhaseFigures& q) {
    return p.traffic == q.traffic;
  };
  return a.outside == b.outside && a.parameter_bytes == b.parameter_bytes &&
         a.saved_bytes == b.saved_bytes &&
         std::equal(a.phases.begin(), a.phases.end(), b.phases.begin(), same_traffic);
}

std::map<std::string, int64_t> ReceivedBytes(const StepPhases& phases) {
  std::map<std::string, int64_t> bytes;
  for (const PhaseFigures& phase : phases) {
    for (const auto& [key, traffic] : phase.traffic) bytes[key.first] += traffic.bytes;
  }
  return bytes;
}

std::vector<ModuleFigures> Fold(const std::vector<ModuleFigures>& modules) {
  std::vector<std::string> paths;
  // What is outside of all modules has no path, and must not be taken for the model itself.
  for (const ModuleFigures& module : modules) paths.push_back(module.outside ? "-" : module.path);
  const auto alike = [&](size_t a, size_t b) { return CountedAlike(modules[a], modules[b]); };
  std::vector<ModuleFigures> folded;
  for (const internal::FoldedPath& fold : internal::FoldPaths(paths, alike)) {
    ModuleFigures& one = folded.emplace_back(modules[fold.members[0]]);
    if (!one.outside) one.path = fold.path;
    one.modules = static_cast<int64_t>(fold.members.size());
    for (const StepPhase phase : kStepPhases) {
      PhaseFigures sum;
      for (const size_t member : fold.members) Add(Of(modules[member].phases, phase), 1, sum);
      PhaseFigures& mean = Of(one.phases, phase);
      mean.compute_seconds = sum.compute_seconds / static_cast<double>(one.modules);
      mean.communication_seconds = sum.communication_seconds / static_cast<double>(one.modules);
      mean.exposed_seconds = sum.exposed_seconds / static_cast<double>(one.modules);
    }
  }
  return folded;
}

}  // namespace dtensor
