// Loading a checkpoint into tensors of any mesh, layout and number of ranks: each rank reads what
// it holds, and of each file no more than the blocks (64 KiB of a slice) which that lies in.
//
//   DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run"));
//   DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{"weight", weight}}));
//   const std::string& note = reader.index().entries.at("note");
//
// training_state.h loads what it saves.
#ifndef DTENSOR_CHECKPOINT_LOAD_H_
#define DTENSOR_CHECKPOINT_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// The checkpoint in `path`, or the latest one of a run's folder: the one that rank 0 finds.
// Collective over the world. Errors, the same on all ranks: of CheckpointReader::Open, behind the
// ranks that have them; kFailedPrecondition where a rank sees another checkpoint there than rank 0,
// and on meta; failures.
absl::StatusOr<CheckpointReader> OpenCheckpoint(Context& context, const std::string& path,
                                                FileSystem& files = FileSystem::OfThisMachine());

struct LoadTarget {
  std::string name;  // in the checkpoint
  DistributedTensor into;
};

// Writes the values into the tensors, in place (BeforeWrite), each by its name in the checkpoint or
// another name that it has there. Floats of one type become those of another, rounded as Cast does.
// Each rank names what lies on it (CheckpointContent); what is in the checkpoint and not asked for
// stays there. Collective over the world. Errors, the same on all ranks: before anything is written
// kInvalidArgument, naming the tensor, for one that is undefined, Partial, or of another Context,
// that the checkpoint lacks, or has with another shape, or with a type that is none of floats where
// the other is, and those of BeforeWrite; then those of CheckpointReader::Read, which name file and
// tensor, behind the ranks that have them: the tensors have any values then. Failures.
absl::Status LoadTensors(Context& context, CheckpointReader& reader,
                         const std::vector<LoadTarget>& targets);

// LoadTensors' part of one rank, for what looks at and reads several things before ranks agree.
namespace internal {

// Whether the checkpoint has a tensor of this name that can be loaded into one of this shape and
// type, whose text is `into`. Errors: of LoadTensors.
absl::Status CheckLoad(const CheckpointReader& reader, const std::string& name,
                       absl::Span<const int64_t> shape, DType dtype, absl::string_view into);
// Reads what this rank holds. Requires: it has passed CheckLoad, and BeforeWrite.
absl::Status LoadLocal(CheckpointReader& reader, const std::string& name,
                       const DistributedTensor& into);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_LOAD_H_
