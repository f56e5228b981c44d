// dtensor checkpoint show, verify and export: what a checkpoint has, whether it is what was
// written, and whole tensors out of it.
#ifndef DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_
#define DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Flags as they were typed. `path` is a checkpoint, or the folder of a run: then the latest in it.
struct CheckpointFlags {
  std::string path;
  std::string folder;                  // of `export`
  std::string max_file_bytes = "5GB";  // the same
};

// Tensors with their types, shapes and slices; files; entries. Errors: kInvalidArgument where there
// is no checkpoint, or its index is not what was written.
absl::StatusOr<Outcome> RunCheckpointShow(const CheckpointFlags& flags, bool json);

// Reads and checks every byte. Not ok, with a line that names file and tensor, where something is
// not what was written. Errors: kInvalidArgument where there is no checkpoint.
absl::StatusOr<Outcome> RunCheckpointVerify(const CheckpointFlags& flags, bool json);

// Writes Hugging Face's files (ExportCheckpoint). Errors: kInvalidArgument for a size that cannot
// be read, where there is no checkpoint, and where a file is there already; kInternal where
// something cannot be read or written.
absl::StatusOr<Outcome> RunCheckpointExport(const CheckpointFlags& flags, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_CHECKPOINT_CHECKPOINT_COMMAND_H_
