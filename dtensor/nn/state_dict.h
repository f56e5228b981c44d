// A model's tensors by the names that checkpoints use for them, for saving and loading.
//
//   DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
//   DT_RETURN_IF_ERROR(LoadStateDict(other, state));  // of another plan
//
// To write a file, take the elements that ToGlobal<T>() returns for each tensor (WriteSafetensors).
// To read one, each rank reads whole tensors (SafetensorsReader), and Distribute<T>() makes the
// tensor.
//
// A parameter is listed under each of its paths. If checkpoints store parts of it as tensors of
// their own (Parameter::parts), these are listed in its place: a model with fused projections has
// q_proj.weight, k_proj.weight and v_proj.weight instead of its qkv_proj.weight.
#ifndef DTENSOR_NN_STATE_DICT_H_
#define DTENSOR_NN_STATE_DICT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

using StateDict = std::map<std::string, DistributedTensor>;

// The tensors that checkpoints store for the parameter at `path`, in the order of its parts; the
// parameter itself if it has no parts. The parameter consists of groups of `group` rows, and the
// part is rows [first, first + rows) of each group. Without parts there is one group. A slice
// (ParameterPart::slice) is row `first`, and its shape lacks dimension 0.
struct StoredPart {
  std::string name;
  Dims shape;
  int64_t first = 0, rows = 0, group = 0;
  bool is_slice = false;
};
std::vector<StoredPart> StoredPartsOf(absl::string_view path, const Parameter& parameter);

// Returns the parameters and buffers in their layouts. A tensor that is not a part is an alias,
// which changes with later steps; Redistribute or Cast those that should not change. No
// communication if parts lie within units; slices of a parameter that is sharded along dimension 0
// are sharded along their own first dimension instead, by an all-to-all. Errors:
// kFailedPrecondition for a parameter that has no memory yet; failures.
absl::StatusOr<StateDict> StateDictOf(Module& model);

// Takes a tensor with the shape of the parameter at `path`, such as its gradient or an optimizer
// state, and returns it by the names of the parameter's parts, or under `path` if it has none.
// Errors: kInvalidArgument for another shape; failures.
absl::StatusOr<StateDict> PartsOf(absl::string_view path, const Parameter& parameter,
                                  const DistributedTensor& tensor);

// Whether checkpoints store slices of the parameter (ParameterPart::slice), and the layout that
// PartsOf gives to those of a tensor of this layout. Errors: as Layout::WithAxes.
bool HasSlices(const Parameter& parameter);
absl::StatusOr<Layout> LayoutOfSlices(const Layout& layout);

// The reverse of PartsOf: joins the tensors of all parts into one of the parameter's shape. The
// parts have one type and may have any layouts. Collective. Errors: kInvalidArgument, naming the
// part, if it is missing or has another shape; failures.
TensorOr JoinParts(absl::string_view path, const Parameter& parameter, const StateDict& parts);

// Writes the tensors into the model's memory. They may have any layout in the model's world and any
// float type. They must be of the model's Context, and may be the model's own tensors under other
// names. For a parameter with several paths one of them suffices; of several, the first counts. If
// an optimizer keeps master weights, create it afterwards, or set its masters as well. Collective.
// Errors: kInvalidArgument, before anything is written, for a name that the model lacks, one that
// `state` lacks, another shape, and another Context; kFailedPrecondition for a parameter that has
// no memory yet; failures.
absl::Status LoadStateDict(Module& model, const StateDict& state);

}  // namespace dtensor

#endif  // DTENSOR_NN_STATE_DICT_H_
