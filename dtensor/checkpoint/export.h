// Exports a checkpoint's tensors, whole, to files that Hugging Face's libraries can read.
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
  // The limit for all tensors of a file together; a single tensor may be larger. No tensor is split
  // over files.
  int64_t max_file_bytes = int64_t{5} << 30;
};

// Writes the tensors whose names have no '/' (the model: training_state.h) into `folder`, which it
// creates: model.safetensors, or model-00001-of-00003.safetensors and so on with
// model.safetensors.index.json. Tied weights are written once; their other names are in the files'
// metadata, together with the name that they share, as safetensors' own save_model writes them. It
// streams: at most 16 MiB, or one row of a tensor, are in memory at a time. One process does it,
// which may be any; it needs no world. Files are written under temporary names, synced, and then
// given their final names, the index last; no existing file is replaced. Returns the names of the
// files. Errors: kInvalidArgument if there is nothing to write, and for a run of adapters
// (nn/lora.h): load it, and save these or merge them; kAlreadyExists if the folder has something
// with the name of one of the files, also if another process was faster; those of
// CheckpointReader::Read; kUnavailable. Files that were finished before an error stay.
absl::StatusOr<std::vector<std::string>> ExportCheckpoint(
    CheckpointReader& reader, const std::string& folder, const ExportOptions& options = {},
    FileSystem& files = FileSystem::OfThisMachine());

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_EXPORT_H_
