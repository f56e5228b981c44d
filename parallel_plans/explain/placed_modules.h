// A model under a plan, module by module: where parameters rest and are used, where activations are
// brought, and what a training step counts there. For explain.h.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_PLACED_MODULES_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_PLACED_MODULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/explain/step_figures.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Where a parameter lies. All of it is the same on every rank, but `bytes`.
struct ParameterFigures {
  std::string path;
  Dims shape;
  Layout rests, used;  // used: what operators compute with
  int64_t bytes = 0;   // on the rank, as it rests
  bool trained = true;
  DType dtype = DType::kF32;
};

// A parameter as one of a module's own.
struct PlacedParameter {
  std::string name;  // in the module: "weight"
  ParameterFigures figures;
  bool shared = false;  // it is also another module's, which is first in the model: figures.path
};

struct PlacedModule {
  ModuleFigures figures;  // the path, how many such modules there are, and what is counted
  std::vector<PlacedParameter> parameters;
  std::vector<ModuleEdge> edges;
  std::vector<std::string> operands, results;  // names, which edges' indices are of
};

// Of the modules that have parameters, edges or figures: what is outside, then the modules in the
// model's order. `figures`: RankFigures::modules of this model. Requires: parameters have memory.
std::vector<PlacedModule> PlacedModules(Module& model, absl::Span<const ModuleFigures> figures);

// As Fold of step_figures.h; those that differ in placements or edges stay apart as well. Figures,
// times too, and the parameters' paths are the first one's.
std::vector<PlacedModule> Fold(const std::vector<PlacedModule>& modules);

// "model.layers.0..31.mlp x32"; "(model)", and "(loss and update)" for what is outside.
std::string NameOf(const ModuleFigures& module);

// One side of an edge of the module's, "S(1) on tp", behind the name of its operand or result,
// "memory S(1) on tp", where there are several. Empty where the edge leaves that side as it comes.
std::string EdgeText(const PlacedModule& module, const ModuleEdge& edge,
                     std::optional<Placement> ModuleEdge::*side);

// Where a parameter rests, and is used if that is elsewhere: "S(0),R, used as R,R".
std::string PlacesText(const ParameterFigures& figures);

// A placement for each mesh axis, "S(0),R", where placements can say the layout, else its own text.
std::string PlacementsText(const Layout& layout, absl::Span<const int64_t> shape);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_PLACED_MODULES_H_
