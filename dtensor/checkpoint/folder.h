// The folder of a run: a folder for each checkpoint, "step-00000012", and those that are being
// written, whose names begin with '.'.
#ifndef DTENSOR_CHECKPOINT_FOLDER_H_
#define DTENSOR_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"

namespace DTENSOR_EXPORT dtensor {

inline constexpr absl::string_view kCheckpointIndexFile = "index.json";

// "step-00000012": its folder in the run's.
std::string CheckpointName(int64_t step);
// The step of such a name; none for others.
std::optional<int64_t> CheckpointStep(absl::string_view name);

// The steps of the checkpoints in a run's folder, ascending. Errors: kNotFound where there is no
// such folder; kUnavailable.
absl::StatusOr<std::vector<int64_t>> ListCheckpoints(
    const std::string& folder, FileSystem& files = FileSystem::OfThisMachine());

// The folder of a checkpoint: `path` itself if it has an index, or of a run's folder the checkpoint
// of the latest step. Errors: kNotFound, saying what is there instead; kUnavailable.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path,
                                           FileSystem& files = FileSystem::OfThisMachine());

// What who saves does in the run's folder.
namespace internal {

// A name for a checkpoint that is being written: nobody else's, and it says whose it is.
std::string TemporaryCheckpointName(int64_t step);
// Removes what processes of this machine that are gone were writing. What it cannot remove stays.
void RemoveAbandoned(FileSystem& files, const std::string& folder);
// Removes the checkpoints before the `keep` latest of those up to `step`. Each is gone as a whole,
// or is there. One that has lost its name and cannot be removed is no error: the next call tries it
// again. Errors: of FileSystem::Rename and SyncFolder.
absl::Status RemoveOlder(FileSystem& files, const std::string& folder, int64_t step, int keep);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_FOLDER_H_
