// Loads a checkpoint into tensors of any mesh, layout and number of ranks. Each rank reads what it
// holds, and of each file only the blocks (64 KiB of a slice) in which that lies.
//
//   DT_ASSIGN_OR_RETURN(CheckpointReader reader, OpenCheckpoint(context, "run"));
//   DT_RETURN_IF_ERROR(LoadTensors(context, reader, {{"weight", weight}}));
//   const std::string& note = reader.index().entries.at("note");
//
// For what training_state.h saves, use its own LoadCheckpoint.
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

// Opens the checkpoint in `path`; if this is the folder of a run, the latest one, as rank 0 finds
// it. Collective over the world. Errors, the same on all ranks: those of CheckpointReader::Open,
// prefixed with the ranks that have them; kFailedPrecondition if a rank sees another checkpoint
// there than rank 0, and on meta; failures.
absl::StatusOr<CheckpointReader> OpenCheckpoint(Context& context, const std::string& path,
                                                FileSystem& files = FileSystem::OfThisMachine());

struct LoadTarget {
  std::string name;  // in the checkpoint
  DistributedTensor into;
};

// Writes the saved values into the tensors, in place (BeforeWrite). Each is found by its name in
// the checkpoint or by an alias there. Floats are converted to the tensor's float type, rounded as
// in Cast. Each rank names the tensors that lie on it (CheckpointContent); tensors in the
// checkpoint that no rank names are ignored. Collective over the world. Errors, the same on all
// ranks: before anything is written, kInvalidArgument, naming the tensor, for one that is
// undefined, Partial, or of another Context; that the checkpoint lacks, or has with another shape;
// or whose type differs from the saved one, unless both are floats; and those of BeforeWrite. Then
// those of CheckpointReader::Read, which name file and tensor, prefixed with the ranks that have
// them; the values of the tensors are unspecified after that. Failures.
absl::Status LoadTensors(Context& context, CheckpointReader& reader,
                         const std::vector<LoadTarget>& targets);

// One rank's part of LoadTensors, for code that checks and reads several things before ranks agree.
namespace internal {

// Whether the checkpoint has a tensor of this name that can be loaded into one of this shape and
// type. `into` is the text of the latter. Errors: those of LoadTensors.
absl::Status CheckLoad(const CheckpointReader& reader, const std::string& name,
                       absl::Span<const int64_t> shape, DType dtype, absl::string_view into);
// Reads what this rank holds. Requires: CheckLoad and BeforeWrite were OK for it.
absl::Status LoadLocal(CheckpointReader& reader, const std::string& name,
                       const DistributedTensor& into);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_LOAD_H_
