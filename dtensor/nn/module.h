// Module: a building block of a model. It has named parameters, named children and a forward
// function, and knows nothing about ranks.
//
//   class Mlp : public Module {
//    public:
//     Mlp(int64_t dim, int64_t hidden)  // the weights' first values have a stddev of 0.02
//         : gate_(dim, hidden, 0.02), up_(dim, hidden, 0.02), down_(hidden, dim, 0.02) {
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
// Forward reads the module's own parameters by Value(): Mul(x, gain_->Value()).
//
// Parameters (parameter.h) have no memory before Materialize(), or a plan, gives it to them.
//
// A module also says what the dimensions of its parameters mean (DimRole). These are facts of its
// arithmetic, for code that decides how to shard a model: a parameter without them is not sharded
// by its features. They affect where data lies and what moves, never a result.
//
//   AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});  // y = x weight^T
//   AddParameter("bias", bias_, {DimRole::kOutput});                       // y + bias
//   AddParameter("table", table_, {DimRole::kRow, DimRole::kOutput});      // y = table[ids]
//
// Modules may share a parameter, and a module may be at several places of a model:
//
//   head_(embedding_.weight())          // one weight, used by two modules
//   AddChild("query", &encoder_);  AddChild("document", &encoder_);
//
// A shared module or parameter is one object with several paths. It is listed once, by its first
// path, which also determines a parameter's initial value. Everything that works by name, such as
// checkpoints, knows it by all its paths (VisitParameterPaths).
//
// Calling a module, y = m(x), redistributes x to the layout that mesh() and edges() ask for, runs
// Forward, redistributes the result to the layout that edges() ask for, and runs Finish, for what
// needs the reduced result. A module without a mesh and edges just runs Forward and Finish.
//
// A module with several operands or results names them and overrides ForwardAll:
//
//   CrossAttention() { SetOperands({"query", "memory"}); }
//   TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;
//   ...
//   y = cross(query, memory);                      // one result
//   DT_ASSIGN_OR_RETURN(results, m.Call({a, b}));  // several results
#ifndef DTENSOR_NN_MODULE_H_
#define DTENSOR_NN_MODULE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/module_edge.h"
#include "dtensor/nn/parameter.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"

namespace DTENSOR_EXPORT dtensor {

struct AttentionOptions;  // attention.h
struct KvCacheSlot;       // kv_cache.h
class LinearLayer;        // layers.h

// What a dimension of a parameter means to a module that has it. A shared parameter may mean
// different things to its modules: an embedding's rows are the output features of the head tied to
// it.
enum class DimRole : uint8_t {
  kOther,   // none of the following, or not stated
  kOutput,  // output features: slice i makes feature i of the result
  kInput,   // input features: slice i meets feature i of the operand; the result is a sum over i
  kRow,  // rows of a table: the operand's values pick rows; the result is a sum over those picked
  kExpert,  // experts of a mixture: values pick experts; the result is a sum over those picked
  kHidden,  // features between two products of the module: the result is a sum over them
};

// A parameter as a member of a module.
struct OwnParameter {
  std::string name;
  ParameterPtr parameter;
  std::vector<DimRole> roles;  // for each dimension; empty: all kOther
};

// The path of the child or parameter that a module at `path` calls `name`. One without a name has
// the module's path; the model itself has the path "".
std::string JoinPath(absl::string_view path, absl::string_view name);

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Calls a module that has one result, with one TensorOr for each operand: moves the operands to
  // the input edges, runs Forward (or ForwardAll), moves the result to the output edges, and runs
  // Finish. Errors: the operands' errors; kFailedPrecondition, with its path, if a parameter of the
  // module has no memory yet; kInvalidArgument for an undefined operand, for another number of
  // operands or results than the module has, and for what edges or Forward refuse, prefixed with
  // the path of the innermost module; failures.
  template <typename... More>
  TensorOr operator()(const TensorOr& x, const More&... more) {
    return CallForOne({x, TensorOr(more)...});
  }
  // The same for a module with any number of results; Finish runs only if there is one.
  TensorsOr Call(absl::Span<const TensorOr> operands);
  TensorsOr Call(std::initializer_list<TensorOr> operands) {
    return Call(absl::MakeConstSpan(operands.begin(), operands.size()));
  }

  // Visits depth first, in order of declaration, with paths like "layers.0.attention.wq". The
  // module itself has "". What is at several paths is visited once, with the first of them.
  void VisitModules(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameters(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  // The same order, but each module or parameter is visited once for each of its paths.
  void VisitModulePaths(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameterPaths(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  // The tensors of the trained parameters, each once. Requires: materialized.
  std::vector<DistributedTensor> Parameters();

  // Allocates every parameter that has no memory yet, replicated on `mesh`, with its initial value.
  // No communication. Errors, after which nothing has changed: kInvalidArgument for a mesh whose
  // number of ranks is not that of the world; those of Parameter::Check. Failures.
  absl::Status Materialize(Context& context, const DeviceMesh& mesh, uint64_t seed);
  // Sets the type of all parameters of floats, but for those that keep a wider one
  // (Parameter::keeps_precision). Requires: none is materialized.
  void SetDType(DType dtype);
  // Skips the initialization of all parameters but adapters' (lora.h), since all will be loaded.
  void SkipFirstValues();

  // --- What the module is.
  // In order of declaration.
  const std::vector<OwnParameter>& own_parameters() const { return parameters_; }
  const std::vector<std::string>& operand_names() const { return operands_; }
  const std::vector<std::string>& result_names() const { return results_; }
  // The options of the attention in its Forward, if it has one (attention_module.h); else null.
  virtual AttentionOptions* attention() { return nullptr; }
  // Itself, if it is a linear layer; else null.
  virtual LinearLayer* linear() { return nullptr; }
  // The number of ids that it has a row for, if it is an embedding of ids; else 0.
  virtual int64_t num_ids() const { return 0; }
  // Not null if it takes part in decoding with a cache of keys and values (kv_cache.h).
  virtual KvCacheSlot* kv_cache_slot() { return nullptr; }
  // Its first path in the model on which Materialize or SetPaths was called. Before that, the path
  // that its parents have given it so far.
  absl::string_view path() const { return path_; }
  // Makes this module the root: it and its submodules get their first paths from here. Materialize
  // and ParallelPlan::Apply do this first. Errors: kInvalidArgument, naming the path, if two
  // parameters, or parts of them, have the same path, which a child without a name can cause.
  absl::Status SetPaths();

  // Whether it trains (the default) or is only evaluated, in which case Dropout does nothing.
  // SetTraining applies to the module and all its submodules.
  bool training() const { return training_; }
  void SetTraining(bool on);

  // --- What is kept for Backward.
  // By default, what its operators save. A module that recomputes (recompute.h) keeps only its
  // operands, as they come or, if it has a mesh(), as they are brought there. In Backward it runs
  // again, with its edges, and in the same training mode as when it was called. It must live until
  // then.
  bool recomputes() const { return recomputes_; }
  void set_recomputes(bool on, const RecomputeOptions& options = {}) {
    recomputes_ = on;
    recompute_options_ = options;
  }

  // --- Where its activations go.
  // The mesh of the module's stage (stage.h), set by a plan: an operand on another mesh is
  // redistributed to it, together with the input edges or, if the module recomputes, before them.
  // None: operands stay on their mesh.
  const std::optional<DeviceMesh>& mesh() const { return mesh_; }
  void set_mesh(std::optional<DeviceMesh> mesh) { mesh_ = std::move(mesh); }
  // Edges are applied in order, for each side.
  std::vector<ModuleEdge>& edges() { return edges_; }
  // The group is entered before Forward, and left after Finish. Null: none.
  void set_gather_group(std::shared_ptr<GatherGroup> group);
  const GatherGroup* gather_group() const { return gather_group_.get(); }
  // The Spec of the first result that Forward returned last, before the edges moved it. Null before
  // the first call, and if there are no edges.
  const Spec* last_result() const { return last_result_.get(); }

 protected:
  Module() = default;
  // Override one of these two: Forward in a module with one operand and one result; in others
  // ForwardAll, which gets the operands in the order of their names and returns all results. (The
  // default ForwardAll calls Forward.)
  virtual TensorOr Forward(const DistributedTensor& x);
  virtual TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands);
  // Called after Forward and the output edges if the module has one result: `y` is the result where
  // the edges put it, and `computed` says where Forward left it (a row-parallel layer leaves a
  // Partial sum). Override it for work that needs the reduced sum and can be done after the edge. A
  // row-parallel layer adds its bias here: once, and without turning the edge's reduce-scatter into
  // an all-reduce.
  virtual TensorOr Finish(const DistributedTensor& y, const Spec& computed);
  // Name the operands and results; the defaults are "x" and "y". Requires: at least one name;
  // unique names of letters, digits and '_' that do not begin with a digit and are not just "_".
  void SetOperands(std::vector<std::string> names);
  void SetResults(std::vector<std::string> names);
  // `child` must outlive this module; usually it is a member of it. Requires: unique names without
  // '.'; a child that does not contain this module; not null. A child without a name has this
  // module's path, so that a wrapper around a module does not change names.
  void AddChild(std::string name, Module* child);
  // Requires: a role for each dimension, or none at all; not null.
  void AddParameter(std::string name, ParameterPtr parameter, std::vector<DimRole> roles = {});
  // The same for a buffer, which is not trained.
  void AddBuffer(std::string name, ParameterPtr buffer, std::vector<DimRole> roles = {});
  // Removes the parameter of this name; does nothing if there is none.
  void RemoveParameter(absl::string_view name);

 private:
  using ModuleVisitor = std::function<void(const std::string&, Module&)>;
  TensorOr CallForOne(absl::Span<const TensorOr> operands);
  TensorOr CallForOne(std::initializer_list<TensorOr> operands) {
    return CallForOne(absl::MakeConstSpan(operands.begin(), operands.size()));
  }
  // One call, of checked operands.
  TensorsOr Run(absl::Span<const DistributedTensor> operands);
  // Result `index`, moved to the output edges and finished.
  TensorOr Deliver(const DistributedTensor& computed, int index);
  // Operand `index`, on mesh() in the layout of Layout::OnMesh.
  TensorOr AtMesh(const DistributedTensor& x, int index) const;
  // Operand or result `index`, moved to the edges of one side.
  TensorOr AtEdge(const DistributedTensor& x, std::optional<Placement> ModuleEdge::*side,
                  int index) const;
  absl::Status CheckOperand(const TensorOr& x, size_t index) const;
  absl::Status CheckCount(absl::string_view what, size_t given,
                          const std::vector<std::string>& names) const;
  absl::Status WithPath(const absl::Status& status) const;
  absl::Status CheckMaterialized() const;
  // Wraps `run` so that this module and its submodules have the training() that they have now.
  RecomputedFunction AsItTrains(RecomputedFunction run);
  std::vector<bool> TrainingFlags();
  void SetTrainingFlags(const std::vector<bool>& flags);
  void VisitFrom(const std::string& path, const ModuleVisitor& visit);
  // `seen`: the modules that were visited before.
  void VisitNew(const std::string& path, HashSet<const Module*>& seen, const ModuleVisitor& visit);

  std::string path_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<OwnParameter> parameters_;
  std::vector<std::string> operands_ = {"x"}, results_ = {"y"};
  std::optional<DeviceMesh> mesh_;
  std::vector<ModuleEdge> edges_;
  bool recomputes_ = false, training_ = true;
  RecomputeOptions recompute_options_;
  std::shared_ptr<GatherGroup> gather_group_;
  SpecPtr last_result_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_MODULE_H_
