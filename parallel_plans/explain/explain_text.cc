#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/explain/explain.h"

namespace dtensor {
namespace {

// "forward   all-gather(tp): 4 calls, 16.0 MiB; ...", one line for each phase that moves something.
void AddPhases(const StepPhases& phases, absl::string_view indent, std::string& text) {
  for (const StepPhase phase : kStepPhases) {
    const PhaseFigures& figures = Of(phases, phase);
    std::vector<std::string> parts;
    for (const auto& [key, traffic] : figures.traffic) parts.push_back(TrafficText(key, traffic));
    if (parts.empty()) continue;
    absl::StrAppendFormat(&text, "%s%-9s %s\n", std::string(indent), std::string(ToString(phase)),
                          absl::StrJoin(parts, "; "));
  }
}

void AddMemory(const Explanation& explanation, std::string& text) {
  const RankFigures& rank = explanation.rank;
  const MemoryFigures& memory = rank.memory;
  absl::StrAppend(&text, "memory     ", BytesText(memory.peak), " at the peak, in the ",
                  ToString(rank.peak_phase), " of ",
                  rank.peak_module.empty() ? "the model" : rank.peak_module, "\n");
  for (const auto& [what, bytes] : PartsOf(memory)) {
    if (bytes > 0) absl::StrAppendFormat(&text, "  %-11s %s\n", what, BytesText(bytes));
  }
  if (!explanation.otherwise) return;
  const std::string choice =
      explanation.usual_recompute.empty()
          ? "without recomputing"
          : absl::StrCat("recomputing ", absl::StrJoin(explanation.usual_recompute, ", "));
  absl::StrAppend(&text, "  ", choice, ": activations ",
                  BytesText(explanation.otherwise->activations), ", peak ",
                  BytesText(explanation.otherwise->peak), "\n");
}

// "(dp) 3.00 KiB, (tp) 12.0 KiB"
std::string ReceivedText(const StepPhases& phases) {
  std::vector<std::string> parts;
  for (const auto& [axes, bytes] : ReceivedBytes(phases)) {
    parts.push_back(absl::StrCat("(", axes, ") ", BytesText(bytes)));
  }
  return absl::StrJoin(parts, ", ");
}

// Received bytes by axes; then each phase's collectives.
void AddReceived(const StepPhases& phases, std::string& text) {
  const std::string received = ReceivedText(phases);
  absl::StrAppend(&text, "received   ", received.empty() ? "nothing" : received, "\n");
  AddPhases(phases, "  ", text);
}

// "time   3 ms: forward 1 ms, backward 2 ms; 500 us of it waiting for communication".
void AddTime(const StepPhases& phases, absl::string_view name, std::string& text) {
  if (SecondsOf(phases) == 0) return;
  std::vector<std::string> parts;
  double exposed = 0;
  for (const StepPhase phase : kStepPhases) {
    const PhaseFigures& figures = Of(phases, phase);
    exposed += figures.exposed_seconds;
    if (figures.seconds() == 0) continue;
    parts.push_back(absl::StrCat(ToString(phase), " ", SecondsText(figures.seconds())));
  }
  absl::StrAppend(&text, name, SecondsText(SecondsOf(phases)), ": ", absl::StrJoin(parts, ", "));
  if (exposed > 0) {
    absl::StrAppend(&text, "; ", SecondsText(exposed), " of it waiting for communication");
  }
  text += '\n';
}

void AddModules(const std::vector<ModuleFigures>& modules, std::string& text) {
  size_t width = 6;
  for (const ModuleFigures& module : modules) width = std::max(width, NameOf(module).size());
  absl::StrAppendFormat(&text, "%-*s  %11s  %11s\n", width, "module", "parameters", "activations");
  for (const ModuleFigures& module : modules) {
    absl::StrAppendFormat(&text, "%-*s  %11s  %11s\n", width, NameOf(module),
                          BytesText(module.parameter_bytes), BytesText(module.saved_bytes));
    AddPhases(module.phases, "    ", text);
    AddTime(module.phases, "    time      ", text);
  }
}

void AddParameters(const std::vector<FoldedParameter>& parameters, std::string& text) {
  text += "parameters, as they rest\n";
  for (const FoldedParameter& folded : parameters) {
    const ParameterFigures& figures = folded.figures;
    absl::StrAppend(&text, figures.path);
    if (folded.parameters > 1) absl::StrAppend(&text, " x", folded.parameters);
    absl::StrAppend(&text, ": ", DimsToString(figures.shape), " as ", figures.rests.ToString());
    if (figures.used != figures.rests) {
      absl::StrAppend(&text, ", used as ", figures.used.ToString());
    }
    absl::StrAppend(&text, ", ", BytesText(figures.bytes), figures.trained ? "\n" : ", a buffer\n");
  }
}

// "in  S(1) on tp", one line for each side of an edge.
void AddEdge(const PlacedModule& module, const ModuleEdge& edge, std::string& text) {
  const std::string in = EdgeText(module, edge, &ModuleEdge::input);
  const std::string out = EdgeText(module, edge, &ModuleEdge::output);
  if (!in.empty()) absl::StrAppend(&text, "    in  ", in, "\n");
  if (!out.empty()) absl::StrAppend(&text, "    out ", out, "\n");
}

void AddPlacedParameter(const PlacedParameter& own, std::string& text) {
  const ParameterFigures& figures = own.figures;
  absl::StrAppend(&text, "    ", own.name, " ");
  if (own.shared) {
    absl::StrAppend(&text, "is ", figures.path, "\n");
    return;
  }
  absl::StrAppend(&text, DimsToString(figures.shape), " ", ToString(figures.dtype), " as ",
                  PlacesText(figures), ", ", BytesText(figures.bytes),
                  figures.trained ? "\n" : ", a buffer\n");
}

// What the module receives in a step; then its parameters and edges, one per line. Nothing for a
// module that has none of these.
void AddPlaced(const PlacedModule& module, std::string& text) {
  const std::string received = ReceivedText(module.figures.phases);
  if (received.empty() && module.parameters.empty() && module.edges.empty()) return;
  absl::StrAppend(&text, NameOf(module.figures), received.empty() ? "" : ": receives ", received,
                  "\n");
  for (const PlacedParameter& own : module.parameters) AddPlacedParameter(own, text);
  for (const ModuleEdge& edge : module.edges) AddEdge(module, edge, text);
}

// A line for each stage, and the time of all together.
void AddStages(const Explanation& explanation, std::string& text) {
  if (explanation.stages.empty()) return;
  const int64_t n = explanation.micro_batches;
  absl::StrAppend(&text, "pipeline   ", SecondsText(explanation.step_seconds()), ": ", n,
                  n == 1 ? " micro-batch" : " micro-batches", " through ",
                  explanation.stages.size(), explanation.stages.size() == 1 ? " stage" : " stages",
                  " by ", dtensor::ToString(explanation.schedule),
                  absl::StrFormat(", %.0f%% idle\n", 100 * explanation.idle_share()));
  absl::StrAppendFormat(&text, "  %5s %7s %11s %11s %11s %12s %11s %11s\n", "stage", "rank",
                        "parameters", "peak", "received", "from stages", "micro-batch", "update");
  for (const StageFigures& stage : explanation.stages) {
    absl::StrAppendFormat(&text, "  %5d %7d %11s %11s %11s %12s %11s %11s\n", stage.stage,
                          stage.rank, BytesText(stage.parameters), BytesText(stage.peak),
                          BytesText(stage.received), BytesText(stage.from_stages),
                          SecondsText(stage.micro_batch.all()), SecondsText(stage.update_seconds));
  }
}

std::string StepText(const Explanation& explanation) {
  const RankFigures& rank = explanation.rank;
  std::string text =
      absl::StrCat("rank       ", rank.rank,
                   ", the fullest; simulated: ", absl::StrJoin(explanation.simulated, ", "), "\n");
  AddMemory(explanation, text);
  const StepPhases phases = rank.phases();
  AddTime(phases, "time       ", text);
  AddReceived(phases, text);
  AddStages(explanation, text);
  return text;
}

}  // namespace

std::string Explanation::ToString() const {
  std::string text = StepText(*this);
  AddModules(modules, text);
  AddParameters(parameters, text);
  return text;
}

std::string Explanation::PlacedText() const {
  std::string text = StepText(*this);
  for (const PlacedModule& module : placed) AddPlaced(module, text);
  return text;
}

}  // namespace dtensor
