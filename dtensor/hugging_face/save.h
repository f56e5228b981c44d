// A model's weights into a folder that Hugging Face's library reads.
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
  std::string config = {};  // the text of config.json; empty: none is written
  // Texts of other files, by name, such as tokenizer.json.
  std::map<std::string, std::string> others = {};
  std::optional<DType> dtype = {};  // of floats in the files; unset: each parameter's own
  // A file ends before the tensor that would make it larger; one tensor may. With more than one the
  // files are model-00001-of-00002.safetensors and so on, with an index.
  int64_t max_file_bytes = int64_t{5} << 30;
  FileSystem* files = nullptr;  // null: the machine's; else it outlives the call
};

// Every parameter and buffer by the names of checkpoints (state_dict.h), what has several paths by
// its first alone, as Hugging Face does. One tensor after the other is brought to the first rank of
// the model's mesh, which writes it and forgets it: no rank has more than one whole tensor.
//
// The folder appears, or is replaced, as a whole (runtime/io/atomic_folder.h): whenever the
// process or the machine goes down there is the model of before, or the new one with all its files.
// So the new one is written beside it, and for a while the disk has both. Files of another model of
// before (model.safetensors, model-00001-of-00002.safetensors, their index) go; files of other
// names stay.
//
// Collective over the world: ranks that are not on the model's mesh call it with a model that
// knows it. Errors, the same on all ranks: kInvalidArgument for options that mean nothing, for
// `others` that are no names of files, or are written anyhow, and before anything is written for
// the folder in which the process runs, and for one where a file system is mounted (a container's
// volume: save into a folder in it); kFailedPrecondition for a parameter without memory, and on
// meta; kUnavailable, naming the file, where it cannot be written, and before anything is written
// for a folder with something in it on a file system that cannot exchange two (NFS): save into a
// new one there. Failures. The folder then has what it had. A new one that is whole and cannot take
// its place stays beside it, as `FOLDER.new`, and the message says so.
absl::Status SaveHuggingFace(Module& model, const std::string& folder,
                             const SaveHuggingFaceOptions& options);

}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_SAVE_H_
