// The folder of a run. It contains one folder per checkpoint, "step-00000012". Names of checkpoints
// that are being written begin with '.'.
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

// The name of a step's checkpoint in the run's folder: "step-00000012".
std::string CheckpointName(int64_t step);
// The step of such a name; nullopt for other names.
std::optional<int64_t> CheckpointStep(absl::string_view name);

// The steps of the checkpoints in a run's folder, ascending. Errors: kNotFound if there is no such
// folder; kUnavailable.
absl::StatusOr<std::vector<int64_t>> ListCheckpoints(
    const std::string& folder, FileSystem& files = FileSystem::OfThisMachine());

// The folder of a checkpoint: `path` itself if it has an index; if it is a run's folder, its
// checkpoint of the latest step. Errors: kNotFound, saying what is there instead; kUnavailable.
absl::StatusOr<std::string> FindCheckpoint(const std::string& path,
                                           FileSystem& files = FileSystem::OfThisMachine());

// What saving does in the run's folder.
namespace internal {

// A name for a checkpoint that is being written. It is unique, and says which process it belongs
// to.
std::string TemporaryCheckpointName(int64_t step);
// Removes what processes of this machine that have ended left half written. What it cannot remove
// stays.
void RemoveAbandoned(FileSystem& files, const std::string& folder);
// Of the checkpoints up to `step`, removes all but the `keep` latest. Each is either removed as a
// whole or still there. If a checkpoint has lost its name but cannot be removed, this is no error:
// the next call tries again. Errors: those of FileSystem::Rename and SyncFolder.
absl::Status RemoveOlder(FileSystem& files, const std::string& folder, int64_t step, int keep);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_FOLDER_H_
