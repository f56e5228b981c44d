// Module: a piece of a model. Named parameters, named children, a forward function; nothing about
// ranks.
//
//   class Mlp : public Module {
//    public:
//     Mlp(int64_t dim, int64_t hidden) : gate_(dim, hidden), up_(dim, hidden), down_(hidden, dim) {
//       AddChild("gate_proj", &gate_);  AddChild("up_proj", &up_);  AddChild("down_proj", &down_);
//     }
//    protected:
//     TensorOr Forward(const DistributedTensor& x) override {
//       return down_(SiluMul(gate_(x), up_(x)));
//     }
//    private:
//     LinearLayer gate_, up_, down_;
//   };
//
// A parameter is declared with its shape and how it starts; it gets memory when a plan is applied
// (parallel_plan.h) or with Materialize(): each element's first value depends on the seed, the
// parameter's path and its global index alone, so it is the same on every mesh.
//
// Modules may share a parameter, and a module may stand in several places of a model:
//
//   head_(embedding_.weight())          // one weight, used by two modules
//   AddChild("query", &encoder_);  AddChild("document", &encoder_);
//
// What is shared is one thing with several paths: listed once, by its first path, which also gives
// it its first value; plans and checkpoints know it by all of them (VisitParameterPaths).
//
// Calling a module, y = m(x), brings x to the layouts that a plan set at the module's edge, runs
// Forward, and brings the result to those at its other edge. With no plan it just runs Forward.
#ifndef DTENSOR_NN_MODULE_H_
#define DTENSOR_NN_MODULE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

struct AttentionOptions;  // ops.h

// How a parameter starts: normal(0, stddev), or all one value.
struct ParameterInit {
  double stddev = 0;
  double value = 0;
  static ParameterInit Normal(double stddev) { return {stddev, 0}; }
  static ParameterInit Constant(double value) { return {0, value}; }
};

// One parameter. Modules that use it hold it together, and it lives as long as one of them: its
// address tells it apart, and its paths are those of the modules that have it.
struct Parameter {
  static std::shared_ptr<Parameter> New(Dims shape, ParameterInit init, Dims units = {});
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  Dims shape;
  ParameterInit init;
  // For each dimension the size of a group that is never cut (features of a head). Empty or 1:
  // none.
  Dims units;
  DType dtype = DType::kF32;
  // Undefined until materialized; then a pinned leaf that requires gradients.
  DistributedTensor tensor;
  int64_t unit(int dim) const { return units.empty() ? 1 : units[dim]; }
  // For plans and modules: memory in `layout`, and the first value that `path` gives it.
  absl::Status Materialize(Context& context, const Layout& layout, absl::string_view path,
                           uint64_t seed);

 private:
  Parameter(Dims shape_in, ParameterInit init_in, Dims units_in);
};
using ParameterPtr = std::shared_ptr<Parameter>;

// What a style asks of a module's parameters (parallel_plan.h).
enum class ParameterStyle : uint8_t { kReplicate, kColwise, kRowwise };

// What a plan sets at a module's edges, for some mesh axes; other axes stay as they come.
// Placements and position are those of Layout::WithAxes.
struct ModuleEdge {
  DeviceMesh mesh;
  AxisList axes;
  std::optional<Placement> input, output;
  bool allow_uneven = false;  // else a Shard that does not divide is refused
  SplitPosition position = SplitPosition::kMinor;
  // Of Rowwise: Forward's result is a sum that `output` reduces. Then `came_whole` says whether the
  // last one was reduced before it came to the edge: Explain tells (parallel_plan.h).
  bool reduces = false, came_whole = false;
};

// x where one side of `edges` wants it, one after the other, in one redistribution. Errors:
// kInvalidArgument for a placement that WithAxes refuses, and a dimension that does not divide,
// naming the multiple that would; failures.
TensorOr AtEdges(const DistributedTensor& x, absl::Span<const ModuleEdge> edges,
                 std::optional<Placement> ModuleEdge::*side);

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Errors: the operand's; kFailedPrecondition where a parameter of the module has no memory yet,
  // with its path; kInvalidArgument for an undefined operand, and what edges or Forward refuse,
  // prefixed with the path of the innermost module; failures.
  TensorOr operator()(const TensorOr& x);

  // Depth first, in order of declaration: (path, thing), paths like "layers.0.attention.wq". The
  // module itself has "". What stands at several paths is visited once, by the first of them.
  void VisitModules(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameters(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  // In the same order, each thing once for each of its paths.
  void VisitModulePaths(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameterPaths(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  void VisitOwnParameters(
      const std::function<void(const std::string& name, Parameter& parameter)>& visit);
  // The tensors of VisitParameters: each once. Requires: materialized.
  std::vector<DistributedTensor> Parameters();

  // Gives every parameter that has none memory, replicated on `mesh`, and its first value. No
  // communication. Errors: kInvalidArgument for a mesh that has not as many ranks as the world;
  // failures.
  absl::Status Materialize(Context& context, const DeviceMesh& mesh, uint64_t seed);
  // The type of all parameters. Requires: none is materialized.
  void SetDType(DType dtype);

  // For plans. Where the parameter called `name` of this module goes under a style on one group of
  // axes: R or S(d), which the parameter's units then refine. Errors: kInvalidArgument when the
  // style means nothing for this kind of module.
  virtual absl::StatusOr<Placement> PlaceParameter(ParameterStyle style,
                                                   absl::string_view name) const;
  // For plans. The options of its attention, where a module has one of its own
  // (attention_module.h).
  virtual AttentionOptions* attention() { return nullptr; }
  // The first path once a plan was applied or the model materialized; before, one that its parents
  // have given it so far.
  absl::string_view path() const { return path_; }
  std::vector<ModuleEdge>& edges() { return edges_; }

 protected:
  Module() = default;
  virtual TensorOr Forward(const DistributedTensor& x) = 0;
  // `child` outlives this module, of which it is a member unless it is shared. Requires: unique
  // names without '.'; a child that does not contain this module; no null. A child without a name
  // has this module's path: what wraps a module changes no names.
  void AddChild(std::string name, Module* child);
  void AddParameter(std::string name, ParameterPtr parameter);

 private:
  friend class ParallelPlan;
  using ModuleVisitor = std::function<void(const std::string&, Module&)>;
  // x where the edges of one side want it.
  TensorOr AtEdge(const DistributedTensor& x, std::optional<Placement> ModuleEdge::*side) const;
  absl::Status WithPath(const absl::Status& status) const;
  absl::Status CheckMaterialized() const;
  void NoteReduced(const Layout& result);
  void VisitFrom(const std::string& path, const ModuleVisitor& visit);
  // `seen`: what was visited before.
  void VisitNew(const std::string& path, absl::flat_hash_set<const Module*>& seen,
                const ModuleVisitor& visit);

  std::string path_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, ParameterPtr>> parameters_;
  std::vector<ModuleEdge> edges_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_MODULE_H_
