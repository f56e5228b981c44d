// PlanBuilder: works out what a plan would do before anything is done, so that an error changes
// nothing. For ParallelPlan alone.
//
// Lines name places, which are paths of the model. A module or parameter may be at several places:
// what the lines say of all of them is joined, and must agree.
#ifndef DTENSOR_PARALLEL_PLANS_PLAN_BUILDER_H_
#define DTENSOR_PARALLEL_PLANS_PLAN_BUILDER_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/parallel_plans/parallel_plan.h"

namespace dtensor {
namespace internal {

class PlanBuilder {
 public:
  // A parameter, the first of its paths, and the modules that have it.
  struct ParameterUses {
    struct Use {
      size_t module;
      std::string name;
    };
    Parameter* parameter;
    std::string path;
    std::vector<Use> uses;
  };

  // All must outlive the builder.
  PlanBuilder(const ParallelPlan& plan, Module& model, const DeviceMesh& mesh,
              const ParallelPlanOptions& options);

  // Finds which lines name which modules, and what their styles want of them. Call it before
  // anything below. Errors, here and below: kInvalidArgument, those of Apply.
  absl::Status MatchLines();

  // The model's modules, in the order of their first paths.
  size_t size() const { return modules_.size(); }
  Module& module(size_t i) const { return *modules_[i].module; }
  const std::string& path(size_t i) const { return modules_[i].path; }
  // The mesh of the module's stage (stage.h); none: it is in no stage.
  std::optional<DeviceMesh> StageMeshOf(size_t i) const;
  std::vector<ModuleEdge> EdgesOf(size_t i) const;
  // Sets the options of the module's attention, if it has one, as the styles of its lines want
  // them.
  void SetAttention(size_t i) const;

  // Which of the modules are recomputed. Errors: a pattern that matches nothing.
  absl::StatusOr<std::vector<bool>> Recomputed() const;

  // In the order of their first paths.
  std::vector<ParameterUses> Parameters() const;
  // The layout in which a parameter is used, joined from all lines that name a module which has it.
  // If such modules are in several stages: a layout for each, in the order of these uses.
  absl::StatusOr<std::vector<Layout>> PlaceParameter(const ParameterUses& used) const;

  // Modules whose parameters are gathered together (fully_shard.h), in the order of modules.
  struct Unit {
    size_t module;
    const ParallelPlan::Line* line;
    ShardLevel level;
  };
  const std::vector<Unit>& units() const { return units_; }
  // The index of the innermost unit that contains the parameter in its first use; -1 if there is
  // none.
  int UnitOf(const ParameterUses& used) const;
  // The layout in which a parameter of that unit is stored between uses.
  absl::StatusOr<Layout> PlaceBetweenUses(const ParameterUses& used, int unit,
                                          const Layout& layout) const;

 private:
  // Where a module lies: the whole mesh, or the mesh of the stage that the line says.
  struct Site {
    DeviceMesh mesh;
    const ParallelPlan::Line* stage = nullptr;
  };
  // A line that names the module at `path`. `wishes` is what its style wants there, set by
  // AskStyle. The axes are those of the module's mesh.
  struct Claimed {
    const ParallelPlan::Line* line;
    AxisList axes;
    std::string path;
    StyleWishes wishes;
  };
  // A place at which the model has a module.
  struct Place {
    std::string path;
    Module* module;
    Site site;
    std::vector<Claimed> claims;
    std::map<int, const ParallelPlan::Line*> by_axis;
  };
  // A module at the first of its paths, with the claims of all of them.
  struct Entry {
    Module* module;
    std::string path;
    Site site;
    std::vector<Claimed> claims;
  };
  // The placement that a line wants for the parameter at `path`; its dimension counts from the
  // first.
  struct Wish {
    const ParallelPlan::Line* line;
    AxisList axes;
    std::string path;
    Placement placement;
    bool allow_uneven = false;
  };

  absl::Status FindStages();
  absl::Status CheckStages() const;
  absl::Status MatchLine(const ParallelPlan::Line& line);
  // Calls claim(place) for each place that the line names. Errors: if there is none.
  absl::Status ForEachMatch(const ParallelPlan::Line& line,
                            absl::FunctionRef<absl::Status(Place& place)> claim);
  absl::Status Claim(Place& place, const ParallelPlan::Line& line) const;
  absl::Status JoinPlaces();
  absl::Status AskStyle(const Entry& entry, Claimed& claimed) const;
  absl::Status FindUnits();
  // Of the modules on this mesh.
  absl::StatusOr<std::vector<Wish>> WishesFor(const ParameterUses& used,
                                              const DeviceMesh& mesh) const;
  // Checks that the wish can be granted after others, which made the layout `granted`.
  static absl::Status CheckDivides(const Wish& wish, const Parameter& parameter, int dim,
                                   const Layout& granted);
  absl::StatusOr<Layout> Grant(const Wish& wish, const Parameter& parameter,
                               const Layout& layout) const;
  std::string NoModule(absl::string_view pattern) const;

  const ParallelPlan& plan_;
  const DeviceMesh& mesh_;
  const ParallelPlanOptions& options_;
  std::vector<Place> places_;
  std::vector<Entry> modules_;
  std::vector<Unit> units_;
};

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PLAN_BUILDER_H_
