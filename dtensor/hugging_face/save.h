// Saves a model's weights into a folder that Hugging Face's library can read.
//
//   DT_RETURN_IF_ERROR(SaveHuggingFace(model, "my-model", {.config = config_json}));
#ifndef DTENSOR_HUGGING_FACE_SAVE_H_
#define DTENSOR_HUGGING_FACE_SAVE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"

namespace DTENSOR_EXPORT dtensor {

struct SaveHuggingFaceOptions {
  // The text of config.json; empty: none is written. Written without its "quantization_config", if
  // it has one: the weights are not quantized.
  std::string config = {};
  // Contents of other files by name, such as tokenizer.json.
  std::map<std::string, std::string> others = {};
  std::optional<DType> dtype = {};  // of floats in the files; unset: each parameter's own
  // A file is closed before the tensor that would make it larger than this; a single tensor may be
  // larger. If there are several files, they are called model-00001-of-00002.safetensors and so on,
  // with an index.
  int64_t max_file_bytes = int64_t{5} << 30;
  FileSystem* files = nullptr;  // null: the machine's; else it outlives the call
};

// Saves every parameter and buffer under the names that checkpoints use (state_dict.h), and those
// with several paths under the first only, as Hugging Face does. One tensor after the other is
// gathered on the first rank of the model's mesh, which writes it and frees it: no rank holds more
// than one whole tensor. The stacked matrices of a mixture's experts (mixture.h) count as one.
//
// The folder appears, or is replaced, as a whole (runtime/io/atomic_folder.h): if the process or
// the machine goes down at any time, there is either the old model or the new one with all its
// files. For this the new one is written beside the old one, so for a while the disk holds both.
// Files of the old model (model.safetensors, model-00001-of-00002.safetensors, their index) are
// removed; files with other names stay.
//
// Collective over the world: ranks that are not on the model's mesh call it with a model that knows
// the mesh. Errors, the same on all ranks: kInvalidArgument for invalid options, for `others` that
// are not file names or that are written anyway, and, before anything is written, for the folder in
// which the process runs, and for a mount point (a container's volume: save into a folder in it);
// kFailedPrecondition for a parameter without memory, on meta, and for a model with adapters, which
// would be missing in the files (MergeLora adds them to the weights, SaveAdapter saves them apart);
// kUnavailable, naming the file, if it cannot be written, and, before anything is written, for a
// folder that is not empty on a file system that cannot exchange two folders (NFS): save into a new
// one there. Failures. After an error the folder has what it had. If the new one is complete but
// cannot take its place, it stays beside it as `FOLDER.new`, and the message says so.
absl::Status SaveHuggingFace(Module& model, const std::string& folder,
                             const SaveHuggingFaceOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_SAVE_H_
