// What all ranks together save. Each rank names what it holds, and ranks may name different things:
// in a pipeline, a rank knows only its own stage.
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

// Collective. If all ranks name the same, only a digest of it is exchanged; else each rank's names,
// and, by the first rank of its mesh, each tensor's layout. Requires: each rank has checked its own
// content. Errors, the same on all ranks: kInvalidArgument, naming ranks and tensor, if ranks of a
// tensor's mesh do not name it, give one name to different tensors, or give one alias two meanings;
// and for different folders, steps or entries; failures.
absl::StatusOr<WorldContent> GatherContent(Context& context, const std::string& folder,
                                           const CheckpointContent& content);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_WORLD_CONTENT_H_
