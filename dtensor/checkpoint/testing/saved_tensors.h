// Tensors of all kinds, that lie in many ways on many meshes: what tests save and load.
#ifndef DTENSOR_CHECKPOINT_TESTING_SAVED_TENSORS_H_
#define DTENSOR_CHECKPOINT_TESTING_SAVED_TENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

// A mesh, by its text, and where the tensors lie on it: for each of them its layout's text.
struct SavedPlace {
  std::string mesh;
  int ranks = 1;
  std::map<std::string, std::string> layouts;
};
// Twelve of them, of 1 to 8 ranks: rows, columns, replicas, zigzag, cyclic, blocks, units, two axes
// on one dimension in either order, shards that are uneven or empty, and a mesh of some ranks only.
const std::vector<SavedPlace>& SavedPlaces();

using SavedTensors = std::map<std::string, DistributedTensor>;

// All of them, on this rank of such a place: each element has a value of its own, and `salt` in it.
absl::StatusOr<SavedTensors> MakeSavedTensors(Context& context, const SavedPlace& place,
                                              int64_t salt);
// The same, with nothing in them yet.
absl::StatusOr<SavedTensors> MakeEmptyTensors(Context& context, const SavedPlace& place);
// OK if each local element is what MakeSavedTensors gives it, bit by bit.
absl::Status CheckSavedTensors(const SavedTensors& tensors, int64_t salt);
int64_t SavedBytes();  // of all, once

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TESTING_SAVED_TENSORS_H_
