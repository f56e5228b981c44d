// Parameter: one tensor of a model, trained or not. It is declared with a shape and with how it is
// initialized, and gets memory later, in any layout.
//
//   const ParameterPtr gain = Parameter::New({dim}, ParameterInit::Constant(1));
//
// An element's initial value depends only on the seed, the parameter's path and the element's
// global index, so it is the same on every mesh. Modules (module.h) name their parameters and share
// them.
#ifndef DTENSOR_NN_PARAMETER_H_
#define DTENSOR_NN_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_group.h"

namespace DTENSOR_EXPORT dtensor {

// How a parameter is initialized; ParameterInit() is Constant(0).
struct ParameterInit {
  // Random: normal(0, stddev).
  static ParameterInit Normal(double stddev) {
    return stddev == 0 ? Constant(0) : ParameterInit{Random{stddev}};
  }
  // Every element is `value`.
  static ParameterInit Constant(double value) { return {Equal{value}}; }
  // The given values: of the whole parameter, row-major, the same on every rank, which keeps its
  // shard. They are dropped once the parameter is materialized.
  static ParameterInit Values(std::vector<double> values) {
    return {Given{std::make_shared<const std::vector<double>>(std::move(values))}};
  }
  // Not at all, for parameters that are loaded afterwards (hugging_face/load.h, state_dict.h): this
  // saves a pass over the memory. Elements that are never loaded have unspecified values.
  static ParameterInit None() { return {Nothing{}}; }

  struct Equal {
    double value;
  };
  struct Random {
    double stddev;
  };
  struct Given {
    std::shared_ptr<const std::vector<double>> values;  // not null
  };
  struct Nothing {};
  std::variant<Equal, Random, Given, Nothing> elements;
};

// A part of a parameter that is a tensor of its own in checkpoints.
struct ParameterPart {
  std::string module;  // the module that it belongs to there, in place of the last: "q_proj"
  int64_t rows = 1;    // in each group
  // Not empty: the tensor is one index of dimension 0, which it lacks, at this path in the
  // parameter's module: "3.up_proj.weight". Then `module` is not used.
  std::string slice = "";
};

// One parameter. The modules that use it share ownership, and it lives as long as one of them. It
// is identified by its address, and its paths are those of the modules that have it.
struct Parameter {
  static std::shared_ptr<Parameter> New(Dims shape, ParameterInit init, Dims units = {},
                                        Dims unit_parts = {});
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  Dims shape;
  ParameterInit init;
  // For each dimension, the size of a group that is never cut, such as the features of a head.
  // Empty or 1: no groups. Else one size per dimension, each at least 1.
  Dims units;
  // A smaller group within each unit, used if there are more shards than units: then units may be
  // cut, but only between such groups. Example: a unit is all query heads that share a key/value
  // head, and its group a single head. Empty: units are never cut. Else one size per dimension, as
  // in `units`.
  Dims unit_parts;
  // For each dimension, the number of equal pieces that it consists of, side by side. Each piece is
  // sharded like a dimension of its own. Example: if queries, keys and values are in one weight,
  // each rank gets its own heads of all three, in a layout such as [_ x heads(tp) x 64]. Empty or
  // 1: one piece. Else one number per dimension, each at least 1 and a divisor of its dimension.
  Dims pieces;
  // The parts that dimension 0 consists of, if checkpoints store them as separate tensors. The
  // dimension is a sequence of groups; each group has the rows of all parts, one part after the
  // other. Each part has at least one row, and a group's rows divide the dimension. Slices are
  // parts of one row, all of one group. Empty: checkpoints store the parameter as it is
  // (state_dict.h).
  std::vector<ParameterPart> parts;
  DType dtype = DType::kF32;
  bool keeps_precision = false;  // Module::SetDType gives it no narrower type
  // Whether it is trained. A buffer is not: it has a layout and is saved, but gets no gradient.
  bool trained = true;
  // Whether it is of an adapter (lora.h): files with a model's weights lack it.
  bool is_adapter = false;
  // Undefined until materialized; then a pinned leaf, which requires gradients if it is trained.
  DistributedTensor tensor;
  int64_t unit(int dim, int64_t shards) const;  // the unit if `dim` is cut into so many shards
  int64_t num_pieces(int dim) const { return pieces.empty() ? 1 : pieces[dim]; }
  int64_t piece_size(int dim) const { return shape[dim] / num_pieces(dim); }
  // What Forward computes with: the tensor, gathered first if a plan shards parameters between uses
  // (gather_group.h). Using `tensor` itself gives the same results, with other communication.
  // Requires: materialized. Errors: failures.
  TensorOr Value() const { return ForUse(tensor); }
  // The layouts of its copies on other meshes, one for each mesh. A plan sets them if modules of
  // several stages (stage.h) share the parameter. `tensor`, its gradient and the optimizer's states
  // are on the mesh of the earliest of these stages; modules on each other mesh read a copy.
  std::vector<Layout> copies = {};
  // What Forward computes with on `mesh`: the copy on that mesh, if there is one (RedistributeKept;
  // collective over the ranks of both meshes), else Value(). A layer that may share its parameter
  // calls this with its operand's mesh. Requires: materialized. Errors: failures.
  TensorOr ValueOn(const DeviceMesh& mesh) const;
  // Writes `value`, a tensor of its shape in any layout and on any mesh, cast to its type, into its
  // memory: BeforeWrite(tensor), and a copy. Collective over the ranks of both meshes. Requires:
  // materialized. Errors: as BeforeWrite; kInvalidArgument for another shape or Context; failures.
  absl::Status Write(const DistributedTensor& value) const;
  // Errors: kInvalidArgument, naming `path`, if the number of given values does not match `shape`;
  // for a standard deviation that is negative or not finite; for random values, or training, of a
  // type that is not a float; for units that are not one per dimension; and for pieces or parts
  // that do not make up the shape.
  absl::Status Check(absl::string_view path) const;
  // Allocates the parameter in `layout`, with the initial value that belongs to `path`. No
  // communication. Errors: those of Check; failures.
  absl::Status Materialize(Context& context, const Layout& layout, absl::string_view path,
                           uint64_t seed);

 private:
  Parameter(Dims shape_in, ParameterInit init_in, Dims units_in, Dims unit_parts_in);
};
using ParameterPtr = std::shared_ptr<Parameter>;

}  // namespace dtensor

#endif  // DTENSOR_NN_PARAMETER_H_
