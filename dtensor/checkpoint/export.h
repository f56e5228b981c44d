// A checkpoint's tensors, whole, in the files that Hugging Face's libraries read.
#ifndef DTENSOR_CHECKPOINT_EXPORT_H_
#define DTENSOR_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"

namespace DTENSOR_EXPORT dtensor {

struct ExportOptions {
  // Of a file's tensors together, unless one alone is larger; each tensor is in one file.
  int64_t max_file_bytes = int64_t{5} << 30;
};

// Writes the tensors whose names have no '/' (the model: training_state.h) into `folder`, which it
// makes: model.safetensors, or model-00001-of-00003.safetensors and so on, with
// model.safetensors.index.json. Of tied weights the one that was written; the others' names stand
// in the files' metadata beside the name that they share, as safetensors' own save_model writes
// them. Streams: no more than 16 MiB, or one row of a tensor, is in memory at a time. One process
// does it, and any may: it needs no world. Files are written beside their places, synced, and then
// called by their names, the index last; nothing that is there is replaced. Returns the files'
// names. Errors: kInvalidArgument where there is nothing to write; kAlreadyExists where the folder
// has something called as one of the files, also where another process was sooner; of
// CheckpointReader::Read; kUnavailable. Files that were finished by then stay.
absl::StatusOr<std::vector<std::string>> ExportCheckpoint(
    CheckpointReader& reader, const std::string& folder, const ExportOptions& options = {},
    FileSystem& files = FileSystem::OfThisMachine());

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_EXPORT_H_
