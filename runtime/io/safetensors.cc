#include "dtensor/runtime/io/safetensors.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kBool:
      return "BOOL";
  }
  return "";
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsEntry> entries,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (header.contains(entry.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("safetensors: the name '", entry.name, "' occurs twice"));
    }
    const int64_t end = offset + NumElements(entry.shape) * SizeOf(entry.dtype);
    header[entry.name] = {{"dtype", TypeName(entry.dtype)},
                          {"shape", std::vector<int64_t>(entry.shape.begin(), entry.shape.end())},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = text.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const SafetensorsEntry& entry : entries) {
    file.write(static_cast<const char*>(entry.data),
               NumElements(entry.shape) * SizeOf(entry.dtype));
  }
  file.close();
  if (file.fail()) {
    return absl::UnavailableError(
        absl::StrCat("cannot write '", path, "': ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace dtensor
