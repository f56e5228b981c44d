#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel_plans/explain/explain.h"

namespace dtensor {
namespace {

std::string Scaled(double value, const char* const* units, int most, double step) {
  if (value == 0) return absl::StrCat("0 ", units[0]);
  int unit = 0;
  while (unit < most && value >= step) {
    value /= step;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
}

std::string TrafficText(const TrafficKey& key, const CommunicatorTraffic& traffic) {
  return absl::StrCat(ToString(key.second), "(", key.first, "): ", traffic.calls,
                      traffic.calls == 1 ? " call, " : " calls, ", BytesText(traffic.bytes));
}

// "forward   all-gather(tp): 4 calls, 16.0 MiB; ...", a line for each phase that moves something.
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

// By the axes along which ranks talk; then each phase's collectives.
void AddReceived(const StepPhases& phases, std::string& text) {
  std::map<std::string, int64_t> bytes;
  for (const PhaseFigures& phase : phases) {
    for (const auto& [key, traffic] : phase.traffic) bytes[key.first] += traffic.bytes;
  }
  std::vector<std::string> parts;
  for (const auto& [axes, received] : bytes) {
    parts.push_back(absl::StrCat("(", axes, ") ", BytesText(received)));
  }
  absl::StrAppend(&text, "received   ", parts.empty() ? "nothing" : absl::StrJoin(parts, ", "),
                  "\n");
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

}  // namespace

std::string BytesText(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  return Scaled(static_cast<double>(bytes) / 1024, kUnits, 4, 1024);
}

std::string SecondsText(double seconds) {
  static constexpr const char* kUnits[] = {"us", "ms", "s"};
  return Scaled(seconds * 1e6, kUnits, 2, 1000);
}

std::string NameOf(const ModuleFigures& module) {
  const std::string name = module.outside        ? "(loss and update)"
                           : module.path.empty() ? "(model)"
                                                 : module.path;
  return module.modules == 1 ? name : absl::StrCat(name, " x", module.modules);
}

std::string Explanation::ToString() const {
  std::string text = absl::StrCat(
      "rank       ", rank.rank, ", the fullest; simulated: ", absl::StrJoin(simulated, ", "), "\n");
  AddMemory(*this, text);
  const StepPhases phases = rank.phases();
  AddTime(phases, "time       ", text);
  AddReceived(phases, text);
  AddModules(modules, text);
  AddParameters(parameters, text);
  return text;
}

}  // namespace dtensor
