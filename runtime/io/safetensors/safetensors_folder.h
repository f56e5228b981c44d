// The weights of a model in a folder, as Hugging Face stores them: model.safetensors, or several
// files and model.safetensors.index.json, which says which file has each tensor.
//
//   DT_ASSIGN_OR_RETURN(const SafetensorsFolder folder, SafetensorsFolder::Open("SmolLM2-135M"));
//   for (const auto& [name, tensor] : folder.tensors()) ...
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FOLDER_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FOLDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"

namespace DTENSOR_EXPORT dtensor {

inline constexpr absl::string_view kSafetensorsFile = "model.safetensors";
// The name of the index of several files in place of the one: "model.safetensors.index.json".
std::string SafetensorsIndexName(absl::string_view file = kSafetensorsFile);

class SafetensorsFolder {
 public:
  struct Tensor {
    const SafetensorsReader* file;
    const SafetensorsInfo* info;
  };

  // Reads the headers of all files. If the folder has both model.safetensors and an index, the
  // former is used, as in Hugging Face's library. `file`: the name of the single file; that of the
  // index follows from it. Errors: kNotFound for a folder that has neither, and for a file that the
  // index names but that does not exist; those of ParseSafetensorsIndex; kInvalidArgument, naming
  // index, file and tensor, if a file lacks a tensor; those of SafetensorsReader::Open.
  static absl::StatusOr<SafetensorsFolder> Open(const std::string& folder,
                                                absl::string_view file = kSafetensorsFile);

  // Checks that all files are still where they were opened, for callers that must know that all the
  // files that were opened existed at the same time. Errors: kUnavailable, naming the file.
  absl::Status CheckInPlace() const;

  // One for each file (SafetensorsReader). Errors: as there.
  absl::StatusOr<std::vector<uint32_t>> SampledCrc32c() const;

  const std::string& path() const { return path_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFolder() = default;
  std::string path_;
  std::vector<std::unique_ptr<const SafetensorsReader>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

// The files of an index, by tensor. Errors: kInvalidArgument for text that is no JSON object with a
// member "weight_map" of texts, and for a file name that is not a plain name in this folder.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view text);
// An index as Hugging Face writes it. Requires: the names are UTF-8.
std::string SafetensorsIndexText(const std::map<std::string, std::string>& files,
                                 int64_t total_bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FOLDER_H_
