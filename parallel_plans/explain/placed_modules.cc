#include "dtensor/parallel_plans/explain/placed_modules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/parallel_plans/explain/fold_paths.h"
#include "dtensor/runtime/core/hash_map.h"

namespace dtensor {
namespace {

bool Alike(const ParameterFigures& a, const ParameterFigures& b) {
  return a.shape == b.shape && a.rests == b.rests && a.used == b.used && a.bytes == b.bytes &&
         a.trained == b.trained && a.dtype == b.dtype;
}

bool Alike(const PlacedParameter& a, const PlacedParameter& b) {
  return a.name == b.name && a.shared == b.shared && Alike(a.figures, b.figures) &&
         (!a.shared || a.figures.path == b.figures.path);
}

bool Alike(const ModuleEdge& a, const ModuleEdge& b) {
  return a.mesh == b.mesh && a.axes == b.axes && a.input == b.input && a.output == b.output &&
         a.index == b.index;
}

template <typename T>
bool AllAlike(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& one, const T& other) { return Alike(one, other); });
}

ParameterFigures FiguresOf(std::string path, const Parameter& parameter) {
  const DistributedTensor& tensor = parameter.tensor;
  return {std::move(path),        parameter.shape,   tensor.layout(), UsedLayout(tensor),
          tensor.local().bytes(), parameter.trained, parameter.dtype};
}

}  // namespace

std::vector<PlacedModule> PlacedModules(Module& model, absl::Span<const ModuleFigures> figures) {
  std::vector<PlacedModule> placed;
  auto next = figures.begin();  // in the model's order, too
  for (; next != figures.end() && next->outside; ++next) placed.push_back({.figures = *next});
  HashMap<const Parameter*, std::string> first;  // the first path of each
  model.VisitModules([&](const std::string& path, Module& module) {
    PlacedModule one = {.edges = module.edges(),
                        .operands = module.operand_names(),
                        .results = module.result_names()};
    const bool counted = next != figures.end() && next->path == path;
    if (counted) one.figures = *next++;
    one.figures.path = path;
    for (const OwnParameter& own : module.own_parameters()) {
      const std::string here = JoinPath(path, own.name);
      const auto [owner, fresh] = first.try_emplace(own.parameter.get(), here);
      one.parameters.push_back({own.name, FiguresOf(owner->second, *own.parameter), !fresh});
    }
    if (!counted && one.parameters.empty() && one.edges.empty()) return;
    placed.push_back(std::move(one));
  });
  return placed;
}

std::vector<PlacedModule> Fold(const std::vector<PlacedModule>& modules) {
  std::vector<std::string> paths;
  // What is outside of all modules has no path, and must not be taken for the model itself.
  for (const PlacedModule& module : modules) {
    paths.push_back(module.figures.outside ? "-" : module.figures.path);
  }
  const auto alike = [&](size_t a, size_t b) {
    const PlacedModule &p = modules[a], &q = modules[b];
    return CountedAlike(p.figures, q.figures) && AllAlike(p.parameters, q.parameters) &&
           AllAlike(p.edges, q.edges) && p.operands == q.operands && p.results == q.results;
  };
  std::vector<PlacedModule> folded;
  for (const internal::FoldedPath& fold : internal::FoldPaths(paths, alike)) {
    PlacedModule& one = folded.emplace_back(modules[fold.members[0]]);
    if (!one.figures.outside) one.figures.path = fold.path;
    one.figures.modules = static_cast<int64_t>(fold.members.size());
  }
  return folded;
}

std::string NameOf(const ModuleFigures& module) {
  const std::string name = module.outside        ? "(loss and update)"
                           : module.path.empty() ? "(model)"
                                                 : module.path;
  return module.modules == 1 ? name : absl::StrCat(name, " x", module.modules);
}

std::string EdgeText(const PlacedModule& module, const ModuleEdge& edge,
                     std::optional<Placement> ModuleEdge::*side) {
  if (!(edge.*side)) return "";
  const auto& names = side == &ModuleEdge::input ? module.operands : module.results;
  const bool one_of_many = edge.index >= 0 && names.size() > 1;
  return absl::StrCat(one_of_many ? names[edge.index] + " " : "", (edge.*side)->ToString(), " on ",
                      edge.mesh.AxisNames(edge.axes));
}

std::string PlacesText(const ParameterFigures& figures) {
  const std::string rests = PlacementsText(figures.rests, figures.shape);
  const std::string used = PlacementsText(figures.used, figures.shape);
  return used == rests ? rests : absl::StrCat(rests, ", used as ", used);
}

std::string PlacementsText(const Layout& layout, absl::Span<const int64_t> shape) {
  const absl::StatusOr<Placements> placements = layout.ToPlacements(shape);
  return placements.ok() && !placements->empty() ? ToString(*placements) : layout.ToString();
}

}  // namespace dtensor
