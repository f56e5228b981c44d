// Module: a piece of a model. Named parameters, named children, a forward function; nothing about
// ranks.
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
// Forward reads a parameter of its own by Value(): Mul(x, gain_->Value()).
//
// A parameter is declared with its shape and how it starts; it gets memory with Materialize(), or
// wherever a caller lays it (Parameter::Materialize). Each element's first value depends on the
// seed, the parameter's path and its global index alone, so it is the same on every mesh.
//
// A module also says what the dimensions of its parameters are to it (DimRole). These are facts of
// its arithmetic, for whoever decides how to split a model: a parameter without them is not split
// by its features. They change where things lie and what moves, never a result.
//
//   AddParameter("weight", weight_, {DimRole::kOutput, DimRole::kInput});  // y = x weight^T
//   AddParameter("bias", bias_, {DimRole::kOutput});                       // y + bias
//   AddParameter("table", table_, {DimRole::kRow, DimRole::kOutput});      // y = table[ids]
//
// Modules may share a parameter, and a module may stand in several places of a model:
//
//   head_(embedding_.weight())          // one weight, used by two modules
//   AddChild("query", &encoder_);  AddChild("document", &encoder_);
//
// What is shared is one thing with several paths: listed once, by its first path, which also gives
// it its first value; what goes by names, as a checkpoint, knows it by all of them
// (VisitParameterPaths).
//
// Calling a module, y = m(x), brings x to the layouts that edges() want of it, runs Forward, and
// brings the result to those that they want of that; then Finish adds what needs that result whole.
// A module without edges just runs Forward and Finish.
//
// A module of several operands or results says their names and overrides ForwardAll:
//
//   CrossAttention() { SetOperands({"query", "memory"}); }
//   TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;
//   ...
//   y = cross(query, memory);                    // of one result
//   DT_ASSIGN_OR_RETURN(results, m.Call({a, b}));  // of several
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
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"

namespace DTENSOR_EXPORT dtensor {

struct AttentionOptions;  // attention.h
struct KvCacheSlot;       // kv_cache.h

// How a parameter is initialized:
//   Normal    random, normal(0, stddev)
//   Constant  every element is `value`
//   Values    the given values: of the whole parameter, row-major, the same on every rank, which
//             keeps its shard; dropped once the parameter is materialized
//   None      not at all, for parameters that are loaded afterwards (hugging_face/load.h,
//             state_dict.h): saves a pass over the memory; elements that are never loaded have
//             unspecified values
struct ParameterInit {
  double stddev = 0;
  double value = 0;
  std::shared_ptr<const std::vector<double>> values;
  bool none = false;
  static ParameterInit Normal(double stddev) { return {stddev, 0, nullptr}; }
  static ParameterInit Constant(double value) { return {0, value, nullptr}; }
  static ParameterInit None() { return {0, 0, nullptr, true}; }
  static ParameterInit Values(std::vector<double> values) {
    return {0, 0, std::make_shared<const std::vector<double>>(std::move(values))};
  }
};

// A part of a parameter that checkpoints have as a tensor of its own.
struct ParameterPart {
  std::string module;  // whose it is there: "q_proj"
  int64_t rows;        // of each group
};

// One parameter. Modules that use it hold it together, and it lives as long as one of them: its
// address tells it apart, and its paths are those of the modules that have it.
struct Parameter {
  static std::shared_ptr<Parameter> New(Dims shape, ParameterInit init, Dims units = {},
                                        Dims unit_parts = {});
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  Dims shape;
  ParameterInit init;
  // For each dimension the size of a group that is never to be cut (features of a head). Empty or
  // 1: none. Else as many as there are dimensions, each at least 1.
  Dims units;
  // A smaller group within each unit, used if there are more shards than units: then units may be
  // cut, but only between such groups. Example: a unit is all query heads that share a key/value
  // head, and its group a single head. Empty: units are never cut. Else one size per dimension, as
  // in `units`.
  Dims unit_parts;
  // For each dimension, of how many equal pieces it is made, side by side, each of which is split
  // like a dimension of its own: of queries, keys and values in one weight each rank then has its
  // own heads of all three, a layout such as [_ x heads(tp) x 64]. Empty or 1: one. Else as many
  // as there are dimensions, each at least 1 and a divisor of its dimension.
  Dims pieces;
  // Of dimension 0, which is made of groups, each of them the rows of these parts, one after the
  // other: at least one of each, together a divisor of the dimension. Empty: checkpoints have it as
  // it is (state_dict.h).
  std::vector<ParameterPart> parts;
  DType dtype = DType::kF32;
  // Whether it is trained. A buffer is not: it has a place and is saved, and wants no gradient.
  bool trained = true;
  // Undefined until materialized; then a pinned leaf, which requires gradients if it is trained.
  DistributedTensor tensor;
  int64_t unit(int dim, int64_t shards) const;  // of a dimension that is cut into so many shards
  int64_t num_pieces(int dim) const { return pieces.empty() ? 1 : pieces[dim]; }
  int64_t piece_size(int dim) const { return shape[dim] / num_pieces(dim); }
  // What Forward computes with: the tensor, or gathered, where a plan shards parameters between
  // uses (gather_group.h). `tensor` itself gives the same results, with other communication.
  // Requires: materialized. Errors: failures.
  TensorOr Value() const { return ForUse(tensor); }
  // Errors: kInvalidArgument, naming `path`, for another number of first values than `shape` has, a
  // deviation that is negative or not finite, for random ones, or training, of a type that is no
  // float, for units that are not one for each dimension, and for pieces or parts that do not make
  // up the shape.
  absl::Status Check(absl::string_view path) const;
  // Memory in `layout`, and the first value that `path` gives it. No communication. Errors: those
  // of Check; failures.
  absl::Status Materialize(Context& context, const Layout& layout, absl::string_view path,
                           uint64_t seed);

 private:
  Parameter(Dims shape_in, ParameterInit init_in, Dims units_in, Dims unit_parts_in);
};
using ParameterPtr = std::shared_ptr<Parameter>;

// What a dimension of a parameter is to a module that has it. A shared parameter may be different
// things to its modules: an embedding's rows are the output features of the head tied to it.
enum class DimRole : uint8_t {
  kOther,   // none of the following; so is all that a module does not say
  kOutput,  // output features: slice i makes feature i of the result
  kInput,   // input features: slice i meets feature i of the operand; the result is a sum over i
  kRow,  // rows of a table: the operand's values pick rows; the result is a sum over those picked
};

// A parameter as one of a module's own.
struct OwnParameter {
  std::string name;
  ParameterPtr parameter;
  std::vector<DimRole> roles;  // for each dimension; empty: all kOther
};

// Where a module's operands and results are brought, on some mesh axes; other axes stay as they
// come. Placements and position are those of Layout::WithAxes.
struct ModuleEdge {
  DeviceMesh mesh;
  AxisList axes;
  std::optional<Placement> input, output;  // none: as it comes
  bool allow_uneven = false;               // else a Shard that does not divide is refused
  SplitPosition position = SplitPosition::kMinor;
  // Operators that save an operand which `input` gathered keep it gathered until Backward. Else
  // they keep what it was gathered of, and Backward gathers again: less memory, one more
  // collective.
  bool keep_gathered = false;
  // Which operand `input` is of, and which result `output`: the only one, or -1: each.
  int index = -1;
};

// x, which is operand or result number `index`, where that side of `edges` wants it, one after the
// other, in one redistribution. Errors: kInvalidArgument for another mesh than the edge's, a
// placement that WithAxes refuses, and a dimension that does not divide, naming the multiple that
// would; failures.
TensorOr AtEdges(const DistributedTensor& x, absl::Span<const ModuleEdge> edges,
                 std::optional<Placement> ModuleEdge::*side, int index = 0);

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

  // Depth first, in order of declaration: (path, thing), paths like "layers.0.attention.wq". The
  // module itself has "". What stands at several paths is visited once, by the first of them.
  void VisitModules(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameters(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  // In the same order, each thing once for each of its paths.
  void VisitModulePaths(const std::function<void(const std::string& path, Module& module)>& visit);
  void VisitParameterPaths(
      const std::function<void(const std::string& path, Parameter& parameter)>& visit);
  // The tensors of those that are trained: each once. Requires: materialized.
  std::vector<DistributedTensor> Parameters();

  // Gives every parameter that has none memory, replicated on `mesh`, and its first value. No
  // communication. Errors, where nothing changes: kInvalidArgument for a mesh that has not as many
  // ranks as the world; those of Parameter::Check. Failures.
  absl::Status Materialize(Context& context, const DeviceMesh& mesh, uint64_t seed);
  // The type of all parameters. Requires: none is materialized.
  void SetDType(DType dtype);
  // No parameter gets a first value: all are to be loaded.
  void SkipFirstValues();

  // --- What it is.
  // In order of declaration.
  const std::vector<OwnParameter>& own_parameters() const { return parameters_; }
  const std::vector<std::string>& operand_names() const { return operands_; }
  const std::vector<std::string>& result_names() const { return results_; }
  // The options of the attention in its Forward, where it has one (attention_module.h); else null.
  virtual AttentionOptions* attention() { return nullptr; }
  // For how many ids it has a row, where it is an embedding of ids; else 0.
  virtual int64_t num_ids() const { return 0; }
  // Where it has part in decoding with a cache of keys and values (kv_cache.h); else null.
  virtual KvCacheSlot* kv_cache_slot() { return nullptr; }
  // Its first path in the model that Materialize or SetPaths was called on; before, one that its
  // parents have given it so far.
  absl::string_view path() const { return path_; }
  // Makes this the model: it and the modules in it take their first paths from here. Materialize,
  // and a plan that is applied, do it first. Errors: kInvalidArgument, naming it, for a path that
  // two parameters have, or parts of them, as the child without a name and this module may.
  absl::Status SetPaths();

  // Whether it trains (the default) or is only evaluated, where Dropout does nothing: it and the
  // modules in it.
  bool training() const { return training_; }
  void SetTraining(bool on);

  // --- What it keeps for Backward: what its operators save, or, where it recomputes (recompute.h),
  // its operands as they come alone: it runs again there, edges and all, and trains or not as it
  // did when it was called. It lives until then.
  bool recomputes() const { return recomputes_; }
  void set_recomputes(bool on, const RecomputeOptions& options = {}) {
    recomputes_ = on;
    recompute_options_ = options;
  }

  // --- Where its activations go.
  // Each side's are followed in order.
  std::vector<ModuleEdge>& edges() { return edges_; }
  // Entered before Forward, and left after Finish. Null: none.
  void set_gather_group(std::shared_ptr<GatherGroup> group);
  const GatherGroup* gather_group() const { return gather_group_.get(); }
  // Of the first result that Forward returned last, before the edges moved it. Null before the
  // first call, and without edges.
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
  // Names of operands and results, "x" and "y" unless said. Requires: some, unique, each of
  // letters, digits and '_', not beginning with a digit, and not "_" alone.
  void SetOperands(std::vector<std::string> names);
  void SetResults(std::vector<std::string> names);
  // `child` outlives this module, of which it is a member unless it is shared. Requires: unique
  // names without '.'; a child that does not contain this module; no null. A child without a name
  // has this module's path: what wraps a module changes no names.
  void AddChild(std::string name, Module* child);
  // Requires: a role for each dimension, or none at all; no null.
  void AddParameter(std::string name, ParameterPtr parameter, std::vector<DimRole> roles = {});
  // The same, of one that is not trained.
  void AddBuffer(std::string name, ParameterPtr buffer, std::vector<DimRole> roles = {});

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
  // Operand or result `index`, moved to the edges of one side.
  TensorOr AtEdge(const DistributedTensor& x, std::optional<Placement> ModuleEdge::*side,
                  int index) const;
  absl::Status CheckOperand(const TensorOr& x, size_t index) const;
  absl::Status CheckCount(absl::string_view what, size_t given,
                          const std::vector<std::string>& names) const;
  absl::Status WithPath(const absl::Status& status) const;
  absl::Status CheckMaterialized() const;
  // `run`, with the training() that this module and those in it have now.
  RecomputedFunction AsItTrains(RecomputedFunction run);
  std::vector<bool> TrainingFlags();
  void SetTrainingFlags(const std::vector<bool>& flags);
  void VisitFrom(const std::string& path, const ModuleVisitor& visit);
  // `seen`: what was visited before.
  void VisitNew(const std::string& path, HashSet<const Module*>& seen, const ModuleVisitor& visit);

  std::string path_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<OwnParameter> parameters_;
  std::vector<std::string> operands_ = {"x"}, results_ = {"y"};
  std::vector<ModuleEdge> edges_;
  bool recomputes_ = false, training_ = true;
  RecomputeOptions recompute_options_;
  std::shared_ptr<GatherGroup> gather_group_;
  SpecPtr last_result_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_MODULE_H_
