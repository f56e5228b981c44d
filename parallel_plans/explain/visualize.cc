#include "dtensor/parallel_plans/explain/visualize.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/picture.h"
#include "dtensor/layout/visualize.h"
#include "dtensor/parallel_plans/explain/placed_modules.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Side = std::optional<Placement> ModuleEdge::*;

absl::StatusOr<std::vector<PlacedModule>> ModulesOf(Module& model) {
  std::string without;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (without.empty() && !parameter.tensor.defined()) without = path;
  });
  if (!without.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a picture of a plan: parameter ", without,
                     " has no place yet; apply a plan, or Materialize the model"));
  }
  return Fold(PlacedModules(model, {}));
}

// "R on tp, memory S(1) on tp": all edges of one side.
std::string EdgesText(const PlacedModule& module, Side side) {
  std::vector<std::string> texts;
  for (const ModuleEdge& edge : module.edges) {
    if (edge.*side) texts.push_back(EdgeText(module, edge, side));
  }
  return absl::StrJoin(texts, ", ");
}

std::string ParameterText(const ParameterFigures& figures) {
  return absl::StrCat(DimsToString(figures.shape), " as ", PlacesText(figures));
}

// --- SVG.

constexpr double kSquare = 48, kTall = 66, kSide = 130, kNames = 300;

std::string LabelSvg(double x, double y, absl::string_view text, const char* anchor = "start") {
  return absl::StrFormat(
      "<text x=\"%g\" y=\"%g\" font-size=\"11\" fill=\"black\" stroke=\"none\" "
      "text-anchor=\"%s\">%s</text>\n",
      x, y, anchor, XmlText(text));
}

// A parameter as a square, or as a low rectangle if it is a vector; grey if it has too many parts
// to see.
absl::StatusOr<std::string> ParameterSvg(const PlacedParameter& parameter, double x, double y) {
  constexpr size_t kMostParts = 64;
  const ParameterFigures& figures = parameter.figures;
  const double height = figures.shape.size() < 2 ? kSquare / 4 : kSquare;
  std::vector<PicturePart> parts = HolderParts(figures.rests, figures.shape);
  for (PicturePart& part : parts) part.mark.clear();
  absl::StatusOr<SvgPanel> panel =
      SvgPanel{.svg = "<rect width=\"1\" height=\"1\" fill=\"#ccc\"/>", .width = 1, .height = 1};
  if (parts.size() <= kMostParts && NumElements(figures.shape) > 0) {
    if (auto drawn = PictureSvg(figures.shape, parts); drawn.ok()) panel = std::move(drawn);
  }
  return absl::StrCat(
      absl::StrFormat("<svg x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
                      "preserveAspectRatio=\"none\">\n",
                      x, y, kSquare, height, panel->width, panel->height),
      "<title>", XmlText(absl::StrCat(parameter.name, " ", ParameterText(figures))), "</title>\n",
      panel->svg, "</svg>\n", LabelSvg(x, y + height + 11, parameter.name));
}

}  // namespace

absl::StatusOr<std::string> VisualizePlan(Module& model) {
  DT_ASSIGN_OR_RETURN(const std::vector<PlacedModule> modules, ModulesOf(model));
  std::string text;
  for (const PlacedModule& module : modules) {
    std::vector<std::pair<std::string, std::string>> lines;
    const std::string in = EdgesText(module, &ModuleEdge::input);
    const std::string out = EdgesText(module, &ModuleEdge::output);
    if (!in.empty()) lines.emplace_back("in", in);
    for (const PlacedParameter& parameter : module.parameters) {
      lines.emplace_back(parameter.name, parameter.shared ? "is " + parameter.figures.path
                                                          : ParameterText(parameter.figures));
    }
    if (!out.empty()) lines.emplace_back("out", out);
    size_t width = 0;
    for (const auto& line : lines) width = std::max(width, line.first.size());
    absl::StrAppend(&text, NameOf(module.figures), "\n");
    for (const auto& [name, what] : lines) {
      absl::StrAppendFormat(&text, "  %-*s  %s\n", static_cast<int>(width), name, what);
    }
  }
  return text;
}

absl::StatusOr<std::string> VisualizePlanSvg(Module& model) {
  DT_ASSIGN_OR_RETURN(const std::vector<PlacedModule> modules, ModulesOf(model));
  SvgPanel panel;
  const double parameters = kNames + kSide;
  double widest = 0;
  for (const PlacedModule& module : modules) {
    const double y = panel.height;
    panel.svg += LabelSvg(0, y + 16, NameOf(module.figures));
    panel.svg += LabelSvg(kNames, y + 16, EdgesText(module, &ModuleEdge::input));
    double x = parameters;
    for (const PlacedParameter& parameter : module.parameters) {
      DT_ASSIGN_OR_RETURN(const std::string square, ParameterSvg(parameter, x, y));
      panel.svg += square;
      x += kSquare + 16;
    }
    panel.svg += LabelSvg(x + 8, y + 16, EdgesText(module, &ModuleEdge::output));
    widest = std::max(widest, x);
    panel.height += module.parameters.empty() ? 24 : kTall;
  }
  panel.width = widest + kSide;
  return SvgDocument("a plan on a model: what goes in, who holds what, what goes out",
                     {std::string()}, {&panel, 1});
}

}  // namespace dtensor
