// The weights of a model as Hugging Face lays them in a folder: model.safetensors, or several files
// and model.safetensors.index.json, which says where each tensor is.
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
inline constexpr absl::string_view kSafetensorsIndex = "model.safetensors.index.json";

class SafetensorsFolder {
 public:
  struct Tensor {
    const SafetensorsReader* file;
    const SafetensorsInfo* info;
  };

  // Reads the headers of all files. Where there are both, the one file counts, as in Hugging Face's
  // library. Errors: kNotFound for a folder that has neither, and a file that the index names and
  // that is not there; of ParseSafetensorsIndex, and kInvalidArgument, naming index, file and
  // tensor, where a file lacks one; of SafetensorsReader::Open.
  static absl::StatusOr<SafetensorsFolder> Open(const std::string& folder);

  // Whether all files are still where they were opened: for who must know that what it opened, and
  // what others opened before, was there at one time. Errors: kUnavailable, naming the file.
  absl::Status CheckInPlace() const;

  // Of each file (SafetensorsReader). Errors: as there.
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
// member "weight_map" of texts, and for a file that is no plain name in this folder.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view text);
// An index as Hugging Face writes it. Requires: names that are UTF-8.
std::string SafetensorsIndexText(const std::map<std::string, std::string>& files,
                                 int64_t total_bytes);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_FOLDER_H_
