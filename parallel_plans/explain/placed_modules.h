// A model under a plan, module by module: where parameters are stored and used, where activations
// are brought, and what is counted there in a training step. For explain.h.
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

// Where a parameter lies. Everything but `bytes` is the same on every rank.
struct ParameterFigures {
  std::string path;
  Dims shape;
  Layout rests, used;  // rests: stored between uses; used: what operators compute with
  int64_t bytes = 0;   // on the rank, as stored
  bool trained = true;
  DType dtype = DType::kF32;
};

// A parameter as a member of a module.
struct PlacedParameter {
  std::string name;  // in the module: "weight"
  ParameterFigures figures;
  bool shared = false;  // another module, earlier in the model, also has it: figures.path
};

struct PlacedModule {
  ModuleFigures figures;  // the path, how many such modules there are, and what is counted
  std::vector<PlacedParameter> parameters;
  std::vector<ModuleEdge> edges;
  std::vector<std::string> operands, results;  // names; edges refer to them by index
};

// Returns the modules that have parameters, edges or figures: first the entry for what is outside
// of all modules, then the modules in the model's order. `figures`: RankFigures::modules of this
// model. Requires: parameters have memory.
std::vector<PlacedModule> PlacedModules(Module& model, absl::Span<const ModuleFigures> figures);

// As Fold of step_figures.h, but modules that differ in placements or edges stay apart as well. All
// figures, also times, and the parameters' paths are those of the first module.
std::vector<PlacedModule> Fold(const std::vector<PlacedModule>& modules);

// "model.layers.0..31.mlp x32"; "(model)"; and "(loss and update)" for what is outside of all
// modules.
std::string NameOf(const ModuleFigures& module);

// One side of a module's edge, such as "S(1) on tp". If there are several operands or results, the
// name comes first: "memory S(1) on tp". Empty if the edge leaves that side as it comes.
std::string EdgeText(const PlacedModule& module, const ModuleEdge& edge,
                     std::optional<Placement> ModuleEdge::*side);

// Where a parameter is stored, and where it is used if that differs: "S(0),R, used as R,R".
std::string PlacesText(const ParameterFigures& figures);

// One placement per mesh axis, "S(0),R", if placements can express the layout; else the layout's
// text.
std::string PlacementsText(const Layout& layout, absl::Span<const int64_t> shape);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_PLACED_MODULES_H_
