// dtensor checkpoint show, verify and export: lists what a checkpoint contains, checks that it is
// intact, and exports whole tensors.
#ifndef DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_
#define DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Flags as they were typed. `path` is a checkpoint, or the folder of a run, of which the latest is
// used.
struct CheckpointFlags {
  std::string path;
  std::string folder;                  // of `export`
  std::string max_file_bytes = "5GB";  // the same
};

// Prints tensors with their types, shapes and slices; files; entries. Errors: kInvalidArgument if
// there is no checkpoint, or its index is corrupt.
absl::StatusOr<Outcome> RunCheckpointShow(const CheckpointFlags& flags, bool json);

// Reads and checks every byte. If something is corrupt, the outcome is not ok, with a line that
// names file and tensor. Errors: kInvalidArgument if there is no checkpoint.
absl::StatusOr<Outcome> RunCheckpointVerify(const CheckpointFlags& flags, bool json);

// Writes Hugging Face's files (ExportCheckpoint). Errors: kInvalidArgument for a size that cannot
// be parsed, if there is no checkpoint, and if a file exists already; kInternal if something cannot
// be read or written.
absl::StatusOr<Outcome> RunCheckpointExport(const CheckpointFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_
