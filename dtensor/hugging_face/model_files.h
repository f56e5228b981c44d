// What the folders of a whole model and of an adapter have in common, for load.cc and save.cc.
#ifndef DTENSOR_HUGGING_FACE_MODEL_FILES_H_
#define DTENSOR_HUGGING_FACE_MODEL_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

namespace dtensor {
namespace internal {

// Which parameters a folder has, under which names, in which files.
struct ModelFiles {
  bool adapters = false;      // those of adapters (Parameter::is_adapter), or all others
  absl::string_view weights;  // the name of the file with the tensors, if there is only one
  absl::string_view config;   // that of the configuration's
  std::string (*name)(absl::string_view path);  // of a tensor; `path`: as in StoredPart
  absl::string_view others_remedy;              // for tensors that the model lacks
};

inline constexpr ModelFiles kWholeModel = {
    .adapters = false,
    .weights = kSafetensorsFile,
    .config = "config.json",
    .name = [](absl::string_view path) { return std::string(path); },
    .others_remedy = "set allow_others to pass over it",
};

// As LoadHuggingFace and SaveHuggingFace, for a function whose name begins messages.
absl::StatusOr<int64_t> LoadFiles(absl::string_view function, Module& model,
                                  const std::string& folder, const ModelFiles& files,
                                  const LoadHuggingFaceOptions& options);
absl::Status SaveFiles(absl::string_view function, Module& model, const std::string& folder,
                       const ModelFiles& files, const SaveHuggingFaceOptions& options);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_MODEL_FILES_H_
