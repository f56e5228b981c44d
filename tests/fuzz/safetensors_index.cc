// The index of a model's files (model.safetensors.index.json). What is read is written and read
// again.
#include <map>
#include <string>

#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const auto files = ParseSafetensorsIndex(input);
  if (!IsRead(files)) return;
  for (const auto& [name, file] : *files) {
    Require(file.find('/') == file.npos && !file.empty(), "a file lies in the folder");
  }
  const auto again = ParseSafetensorsIndex(SafetensorsIndexText(*files, 1));
  Require(again.ok() && *again == *files, "what was read can be written");
}

}  // namespace dtensor::fuzz
