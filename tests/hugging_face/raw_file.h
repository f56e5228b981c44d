// Safetensors files with tensors of any type, as bytes: for types that the library does not write.
#ifndef DTENSOR_TESTS_HUGGING_FACE_RAW_FILE_H_
#define DTENSOR_TESTS_HUGGING_FACE_RAW_FILE_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

namespace dtensor {

struct RawTensor {
  std::string name, type;
  Dims shape;
  std::string bytes;
};

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Writes the tensors as the folder's weights.
inline void WriteRaw(const std::string& folder, const std::vector<RawTensor>& tensors) {
  std::string header, data;
  for (const RawTensor& raw : tensors) {
    absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", raw.name, "\":{\"dtype\":\"",
                    raw.type, "\",\"shape\":", DimsToString(raw.shape), ",\"data_offsets\":[",
                    data.size(), ",", data.size() + raw.bytes.size(), "]}");
    data += raw.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  std::ofstream(absl::StrCat(folder, "/", kSafetensorsFile), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof(length)) << header << data;
}

}  // namespace dtensor

#endif  // DTENSOR_TESTS_HUGGING_FACE_RAW_FILE_H_
