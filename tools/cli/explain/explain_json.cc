#include "dtensor/tools/cli/explain/explain_json.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

Json MemoryJson(const MemoryFigures& memory) {
  Json json = Json::object();
  for (const auto& [name, bytes] : PartsOf(memory)) json[name] = bytes;
  json["peak"] = memory.peak;
  return json;
}

Json PhaseJson(const PhaseFigures& figures) {
  Json traffic = Json::array();
  for (const auto& [key, one] : figures.traffic) {
    traffic.push_back({{"kind", std::string(ToString(key.second))},
                       {"axes", key.first},
                       {"calls", one.calls},
                       {"messages", one.messages},
                       {"bytes", one.bytes}});
  }
  return {{"seconds", figures.seconds()},
          {"communication_seconds", figures.communication_seconds},
          {"exposed_seconds", figures.exposed_seconds},
          {"traffic", std::move(traffic)}};
}

Json PhasesJson(const StepPhases& phases) {
  Json json = Json::object();
  for (const StepPhase phase : kStepPhases) {
    json[std::string(ToString(phase))] = PhaseJson(Of(phases, phase));
  }
  return json;
}

Json ModuleJson(const ModuleFigures& module) {
  Json json = {{"path", module.outside ? Json() : Json(module.path)},
               {"modules", module.modules},
               {"parameter_bytes", module.parameter_bytes},
               {"saved_bytes", module.saved_bytes}};
  json.update(PhasesJson(module.phases));
  return json;
}

Json ParameterJson(const FoldedParameter& folded) {
  const ParameterFigures& figures = folded.figures;
  return {{"path", figures.path},
          {"parameters", folded.parameters},
          {"shape", std::vector<int64_t>(figures.shape.begin(), figures.shape.end())},
          {"rests", figures.rests.ToString()},
          {"used", figures.used.ToString()},
          {"bytes", figures.bytes},
          {"trained", figures.trained}};
}

Json PlacedParameterJson(const PlacedParameter& own) {
  const ParameterFigures& figures = own.figures;
  Json json = {{"name", own.name},
               {"path", figures.path},
               {"shape", std::vector<int64_t>(figures.shape.begin(), figures.shape.end())},
               {"dtype", std::string(ToString(figures.dtype))},
               {"rests", PlacementsText(figures.rests, figures.shape)},
               {"used", PlacementsText(figures.used, figures.shape)},
               {"bytes", own.shared ? 0 : figures.bytes},
               {"trained", figures.trained}};
  if (own.shared) json["shared"] = true;
  return json;
}

Json EdgeJson(const ModuleEdge& edge) {
  const auto text = [](const std::optional<Placement>& placement) {
    return placement ? Json(placement->ToString()) : Json();
  };
  return {{"axes", edge.mesh.AxisNames(edge.axes)},
          {"index", edge.index < 0 ? Json() : Json(edge.index)},
          {"in", text(edge.input)},
          {"out", text(edge.output)}};
}

Json PlacedModuleJson(const PlacedModule& module) {
  const ModuleFigures& figures = module.figures;
  Json json = {{"path", figures.outside ? Json() : Json(figures.path)},
               {"modules", figures.modules},
               {"parameter_bytes", figures.parameter_bytes},
               {"received_bytes", ReceivedBytes(figures.phases)},
               {"parameters", Json::array()},
               {"edges", Json::array()}};
  for (const PlacedParameter& own : module.parameters) {
    json["parameters"].push_back(PlacedParameterJson(own));
  }
  for (const ModuleEdge& edge : module.edges) json["edges"].push_back(EdgeJson(edge));
  return json;
}

Json StageJson(const StageFigures& stage) {
  return {{"stage", stage.stage},
          {"rank", stage.rank},
          {"parameters", stage.parameters},
          {"peak", stage.peak},
          {"received_bytes", stage.received},
          {"received_from_stages_bytes", stage.from_stages},
          {"micro_batch_seconds", stage.micro_batch.all()},
          {"forward_seconds", stage.micro_batch.forward},
          {"put_off_seconds", stage.micro_batch.weights},
          {"update_seconds", stage.update_seconds}};
}

Json StepJson(const Explanation& explanation) {
  const RankFigures& rank = explanation.rank;
  Json json = {
      {"rank", rank.rank},
      {"simulated_ranks", explanation.simulated},
      {"memory", MemoryJson(rank.memory)},
      {"peak_phase", std::string(ToString(rank.peak_phase))},
      {"peak_module", rank.peak_module},
      {"usual_recompute", explanation.usual_recompute},
      {"memory_otherwise", explanation.otherwise ? MemoryJson(*explanation.otherwise) : Json()}};
  json.update(PhasesJson(rank.phases()));
  json["seconds"] = explanation.step_seconds();
  if (explanation.stages.empty()) return json;
  json["stages"] = Json::array();
  for (const StageFigures& stage : explanation.stages) json["stages"].push_back(StageJson(stage));
  json["idle_share"] = explanation.idle_share();
  return json;
}

using Figures = std::map<std::string, double>;

Figures FiguresOf(const Explanation& explanation) {
  Figures figures;
  const MemoryFigures& memory = explanation.rank.memory;
  for (const auto& [name, bytes] : PartsOf(memory)) {
    figures["memory." + name] = static_cast<double>(bytes);
  }
  figures["memory.peak"] = static_cast<double>(memory.peak);
  figures["seconds"] = explanation.step_seconds();
  const StepPhases phases = explanation.rank.phases();
  for (const StepPhase phase : kStepPhases) {
    const std::string name(ToString(phase));
    const PhaseFigures& of = Of(phases, phase);
    figures[name + ".seconds"] = of.seconds();
    figures[name + ".exposed_seconds"] = of.exposed_seconds;
    for (const auto& [key, traffic] : of.traffic) {
      const std::string kind = absl::StrCat(name, ".", ToString(key.second), "(", key.first, ")");
      figures[kind + ".calls"] = static_cast<double>(traffic.calls);
      figures[kind + ".bytes"] = static_cast<double>(traffic.bytes);
    }
  }
  return figures;
}

std::string FigureText(const std::string& name, double value) {
  if (absl::EndsWith(name, ".calls")) return absl::StrFormat("%.0f", value);
  if (absl::EndsWith(name, "seconds")) return SecondsText(value);
  return BytesText(static_cast<int64_t>(value));
}

}  // namespace

Json ExplanationJson(const Explanation& explanation) {
  Json json = StepJson(explanation);
  json["modules"] = Json::array();
  for (const ModuleFigures& module : explanation.modules) {
    json["modules"].push_back(ModuleJson(module));
  }
  json["parameters"] = Json::array();
  for (const FoldedParameter& one : explanation.parameters) {
    json["parameters"].push_back(ParameterJson(one));
  }
  return json;
}

Json PlacedJson(const Explanation& explanation) {
  Json json = StepJson(explanation);
  json["received_bytes"] = ReceivedBytes(explanation.rank.phases());
  json["modules"] = Json::array();
  for (const PlacedModule& module : explanation.placed) {
    json["modules"].push_back(PlacedModuleJson(module));
  }
  return json;
}

std::vector<ComparedFigure> Compare(const Explanation& first, const Explanation& second) {
  std::map<std::string, ComparedFigure> all;
  for (const auto& [name, value] : FiguresOf(first)) all[name].first = value;
  for (const auto& [name, value] : FiguresOf(second)) all[name].second = value;
  std::vector<ComparedFigure> figures;
  for (auto& [name, figure] : all) {
    figure.name = name;
    figures.push_back(std::move(figure));
  }
  return figures;
}

Json ComparisonJson(const std::vector<ComparedFigure>& figures) {
  Json json = Json::array();
  for (const ComparedFigure& figure : figures) {
    json.push_back({{"figure", figure.name},
                    {"plan", figure.first},
                    {"compare", figure.second},
                    {"difference", figure.second - figure.first}});
  }
  return json;
}

std::string ComparisonText(const std::vector<ComparedFigure>& figures) {
  std::string text =
      absl::StrFormat("%-44s %12s %12s %9s\n", "figure", "--plan", "--compare", "ratio");
  for (const ComparedFigure& figure : figures) {
    if (figure.first == figure.second) continue;
    absl::StrAppendFormat(
        &text, "%-44s %12s %12s %9s\n", figure.name, FigureText(figure.name, figure.first),
        FigureText(figure.name, figure.second),
        figure.first == 0 ? "new" : absl::StrFormat("%.3g", figure.second / figure.first));
  }
  return text;
}

}  // namespace dtensor::cli
