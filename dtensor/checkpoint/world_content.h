// What all ranks together save: each rank names what it holds, and not all name the same. In a
// pipeline a rank knows its own stage.
#ifndef DTENSOR_CHECKPOINT_WORLD_CONTENT_H_
#define DTENSOR_CHECKPOINT_WORLD_CONTENT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/slice_plan.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

// The same on all ranks.
struct WorldContent {
  std::map<std::string, PlannedTensor> tensors;
  std::map<std::string, std::string> aliases;
};

// Collective. Where all ranks name the same, nothing but a digest of it is sent; else each rank's
// names, and of each tensor the layout, by the first rank of its mesh. Requires: content that each
// rank has checked by itself. Errors, the same on all ranks: kInvalidArgument, naming ranks and
// tensor, where ranks of a tensor's mesh do not name it, name unlike tensors alike, or give one
// alias two meanings; and for unlike folders, steps and entries; failures.
absl::StatusOr<WorldContent> GatherContent(Context& context, const std::string& folder,
                                           const CheckpointContent& content);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_WORLD_CONTENT_H_
