// Tensors of all kinds, in many layouts on many meshes, for tests to save and load.
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

// A mesh, by its text, and the layouts of the tensors on it, by tensor and as text.
struct SavedPlace {
  std::string mesh;
  int ranks = 1;
  std::map<std::string, std::string> layouts;
};
// Twelve of them, of 1 to 8 ranks: rows, columns, replicas, zigzag, cyclic, blocks, units, two axes
// on one dimension in either order, shards that are uneven or empty, and a mesh of some ranks only.
const std::vector<SavedPlace>& SavedPlaces();

using SavedTensors = std::map<std::string, DistributedTensor>;

// All tensors, on this rank of such a place. The value of an element depends on its position and on
// `salt` only.
absl::StatusOr<SavedTensors> MakeSavedTensors(Context& context, const SavedPlace& place,
                                              int64_t salt);
// The same, with nothing in them yet.
absl::StatusOr<SavedTensors> MakeEmptyTensors(Context& context, const SavedPlace& place);
// OK if each local element is what MakeSavedTensors gives it, bit by bit.
absl::Status CheckSavedTensors(const SavedTensors& tensors, int64_t salt);
int64_t SavedBytes();  // of all, once

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TESTING_SAVED_TENSORS_H_
