// A model's tensors by the names that checkpoints have for them, going out and coming in.
//
//   DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
//   DT_RETURN_IF_ERROR(LoadStateDict(other, state));  // of another plan
//
// Into a file go the elements that ToGlobal<T>() gives of each tensor (WriteSafetensors); out of
// one each rank reads them whole (SafetensorsReader), and Distribute<T>() makes the tensor.
//
// A parameter goes by each of its paths. Where checkpoints have parts of it as tensors of their
// own, these stand in its place (Parameter::parts): a model of fused projections has q_proj.weight,
// k_proj.weight and v_proj.weight where it is made of one qkv_proj.weight.
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

// The tensors that checkpoints have of the parameter at `path`, in the order of its parts; itself
// where there are none. Rows of a part lie in the parameter, which is made of groups of `group`
// rows, as `rows` from row `first` of each; where there are no parts, there is one group.
struct StoredPart {
  std::string name;
  Dims shape;
  int64_t first = 0, rows = 0, group = 0;
};
std::vector<StoredPart> StoredPartsOf(absl::string_view path, const Parameter& parameter);

// The parameters and buffers, as they lie. What is no part is an alias, which sees later steps;
// Redistribute or Cast what is to stay. No communication where parts lie within units. Errors:
// kFailedPrecondition for a parameter that has no memory yet; kInvalidArgument for one that has
// parts, on a rank that is not on its mesh; failures.
absl::StatusOr<StateDict> StateDictOf(Module& model);

// `tensor`, which has the shape of the parameter at `path`: its gradient, or a state of its
// optimizer, by the names of the parameter's parts, or its own. Errors: kInvalidArgument for
// another shape; failures.
absl::StatusOr<StateDict> PartsOf(absl::string_view path, const Parameter& parameter,
                                  const DistributedTensor& tensor);

// The reverse of PartsOf: a tensor of the parameter's shape from those of all its parts, which have
// one type, wherever they lie. Collective. Errors: kInvalidArgument, naming it, for a part that is
// missing or has another shape; failures.
TensorOr JoinParts(absl::string_view path, const Parameter& parameter, const StateDict& parts);

// Writes the tensors into the model's memory, wherever they lie in its world, and of any type of
// floats; they are of the model's Context, and may be its own, under other names. What has several
// paths needs one of them; of several the first counts. An optimizer with master weights is made
// afterwards, or its masters are set as well. Collective. Errors: kInvalidArgument, before anything
// is written, for a name that the model lacks, one that `state` lacks, and another shape;
// kFailedPrecondition for a parameter that has no memory yet; failures.
absl::Status LoadStateDict(Module& model, const StateDict& state);

}  // namespace dtensor

#endif  // DTENSOR_NN_STATE_DICT_H_
