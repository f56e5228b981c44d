#include "dtensor/runtime/io/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using nlohmann::json;

// The format's own limit.
constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct Type {
  absl::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array kTypes = {Type{"F32", 4, DType::kF32},      Type{"F64", 8, DType::kF64},
                               Type{"BF16", 2, DType::kBF16},    Type{"F16", 2, DType::kF16},
                               Type{"I32", 4, DType::kI32},      Type{"I64", 8, DType::kI64},
                               Type{"BOOL", 1, DType::kBool},    Type{"U8", 1, std::nullopt},
                               Type{"I8", 1, std::nullopt},      Type{"U16", 2, std::nullopt},
                               Type{"I16", 2, std::nullopt},     Type{"U32", 4, std::nullopt},
                               Type{"U64", 8, std::nullopt},     Type{"F8_E4M3", 1, std::nullopt},
                               Type{"F8_E5M2", 1, std::nullopt}, Type{"F8_E8M0", 1, std::nullopt},
                               Type{"C64", 8, std::nullopt}};

// The header is an object of objects of lists. What is nested more deeply may be nested without
// end, for which a parser takes memory.
absl::Status CheckDepth(absl::string_view text) {
  constexpr int kMaxDepth = 3;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_text = !in_text;
    if (in_text) {
      if (c == '\\') ++i;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) {
        return InvalidArgument({"the header is nested more deeply than tensors are"});
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return absl::OkStatus();
}

// A parsed value cannot tell that a name came twice, so names are watched as they come.
absl::StatusOr<json> ParseJson(const std::string& text) {
  DT_RETURN_IF_ERROR(CheckDepth(text));
  std::set<std::string> names, members;  // of the header, and of the tensor that is read
  absl::Status wrong;
  const auto watch = [&](int depth, json::parse_event_t event, const json& name) {
    if (event != json::parse_event_t::key) return true;
    if (depth == 1) members.clear();
    if (!(depth == 1 ? names : members).insert(name.get<std::string>()).second) {
      wrong = InvalidArgument({"the header has '", name.get<std::string>(), "' twice"});
    }
    return true;
  };
  json header = json::parse(text, watch, /*allow_exceptions=*/false);
  DT_RETURN_IF_ERROR(wrong);
  if (header.is_object()) return header;
  return InvalidArgument({"the header is no JSON object"});
}

// Sizes and offsets: whole numbers of 0 or more, below 2^63.
absl::StatusOr<std::vector<int64_t>> ParseNumbers(const json& list, absl::string_view what) {
  if (!list.is_array()) return InvalidArgument({what, " is no list"});
  std::vector<int64_t> numbers;
  for (const json& number : list) {
    if (!number.is_number_unsigned() ||
        number.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return InvalidArgument({what, " has ", number.dump(-1, ' ', true),
                              ", which is no whole number from 0 to 2^63 - 1"});
    }
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

// Sizes of 0 count as 1, so that strides do not overflow either.
absl::Status CheckCountable(absl::Span<const int64_t> shape, int64_t element) {
  int64_t bytes = element;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return InvalidArgument({"shape ", DimsToString(shape), " has too many bytes to be counted"});
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBytes(const SafetensorsInfo& info, int64_t element) {
  const int64_t needed = NumElements(info.shape) * element;
  if (info.begin <= info.end && info.end - info.begin == needed) return absl::OkStatus();
  return InvalidArgument({"shape ", DimsToString(info.shape), " of ", info.type, " needs ",
                          absl::StrCat(needed), " B, and data_offsets are ",
                          absl::StrCat(info.begin), " to ", absl::StrCat(info.end)});
}

absl::StatusOr<Type> ParseType(const json& name) {
  if (!name.is_string()) return InvalidArgument({"dtype is no text"});
  const auto text = name.get<std::string>();
  for (const Type& type : kTypes) {
    if (text == type.name) return type;
  }
  std::vector<absl::string_view> names;
  for (const Type& type : kTypes) names.push_back(type.name);
  return InvalidArgument({"dtype ", text, " is unknown; known are ", absl::StrJoin(names, ", ")});
}

absl::StatusOr<SafetensorsInfo> ParseInfo(const json& entry) {
  if (!entry.is_object()) return InvalidArgument({"is no JSON object"});
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) return InvalidArgument({"there is no ", key});
  }
  DT_ASSIGN_OR_RETURN(const Type type, ParseType(entry["dtype"]));
  DT_ASSIGN_OR_RETURN(const auto sizes, ParseNumbers(entry["shape"], "shape"));
  DT_ASSIGN_OR_RETURN(const auto offsets, ParseNumbers(entry["data_offsets"], "data_offsets"));
  if (offsets.size() != 2) return InvalidArgument({"data_offsets are not two"});
  SafetensorsInfo info = {std::string(type.name), type.dtype, Dims(sizes.begin(), sizes.end()),
                          offsets[0], offsets[1]};
  DT_RETURN_IF_ERROR(CheckCountable(info.shape, type.bytes));
  DT_RETURN_IF_ERROR(CheckBytes(info, type.bytes));
  return info;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const json& entry) {
  if (!entry.is_object()) return InvalidArgument({"__metadata__ is no JSON object"});
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) return InvalidArgument({"__metadata__ has '", key, "', no text"});
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

absl::StatusOr<int64_t> FileSize(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("there is no file '", path, "'"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return InvalidArgument({"'", path, "' is no ordinary file"});
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat("'", path, "': ", error.message()));
  return static_cast<int64_t>(bytes);
}

// As many bytes as `length` says, and `file` stands behind them.
absl::StatusOr<std::string> ReadHeader(std::ifstream& file, int64_t file_bytes) {
  std::array<unsigned char, 8> prefix = {};
  if (file_bytes < 8 || !file.read(reinterpret_cast<char*>(prefix.data()), 8)) {
    return InvalidArgument({"it is too short for a header's length, 8 B"});
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > static_cast<uint64_t>(std::min(file_bytes - 8, kMaxHeaderBytes))) {
    return InvalidArgument({"it is ", absl::StrCat(file_bytes), " B long, and its header ",
                            absl::StrCat(length), " B; a header ends within the file, and has ",
                            absl::StrCat(kMaxHeaderBytes), " B or less"});
  }
  std::string text(length, '\0');
  if (file.read(text.data(), static_cast<std::streamsize>(length))) return text;
  return InvalidArgument({"its header cannot be read"});
}

absl::Status OfFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("safetensors file '", path, "': ", status.message()));
}

absl::Status OfTensor(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("tensor '", name, "': ", status.message()));
}

}  // namespace

absl::Status SafetensorsReader::ParseHeader(const std::string& text) {
  DT_ASSIGN_OR_RETURN(const json header, ParseJson(text));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      DT_ASSIGN_OR_RETURN(metadata_, ParseMetadata(entry));
      continue;
    }
    absl::StatusOr<SafetensorsInfo> info = ParseInfo(entry);
    if (!info.ok()) return OfTensor(name, info.status());
    tensors_[name] = *std::move(info);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::CheckOffsets(int64_t data_bytes) const {
  std::vector<const std::pair<const std::string, SafetensorsInfo>*> ascending;
  for (const auto& tensor : tensors_) ascending.push_back(&tensor);
  std::sort(ascending.begin(), ascending.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t end = 0;
  for (const auto* tensor : ascending) {
    const SafetensorsInfo& info = tensor->second;
    if (info.begin != end) {
      return OfTensor(tensor->first,
                      InvalidArgument({"it begins at byte ", absl::StrCat(info.begin),
                                       ", and those before it end at ", absl::StrCat(end),
                                       "; tensors have no gaps between them and do not overlap"}));
    }
    if (info.end > data_bytes) {
      return OfTensor(tensor->first,
                      InvalidArgument({"it ends at byte ", absl::StrCat(info.end), " of the ",
                                       absl::StrCat(data_bytes), " that follow the header"}));
    }
    end = info.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return InvalidArgument({"its tensors end at byte ", absl::StrCat(end), " of the ",
                          absl::StrCat(data_bytes), " that follow the header"});
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  DT_ASSIGN_OR_RETURN(const int64_t file_bytes, FileSize(path));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read '", path, "'"));
  const absl::StatusOr<std::string> header = ReadHeader(file, file_bytes);
  if (!header.ok()) return OfFile(path, header.status());
  reader.data_begin_ = 8 + static_cast<int64_t>(header->size());
  DT_RETURN_IF_ERROR(OfFile(path, reader.ParseHeader(*header)));
  DT_RETURN_IF_ERROR(OfFile(path, reader.CheckOffsets(file_bytes - reader.data_begin_)));
  return reader;
}

absl::StatusOr<SafetensorsInfo> SafetensorsReader::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [other, info] : tensors_) names.push_back(absl::StrCat("'", other, "'"));
  return absl::NotFoundError(absl::StrCat("safetensors file '", path_, "' has no tensor '", name,
                                          "'; it has ",
                                          names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::vector<std::byte>> SafetensorsReader::Read(absl::string_view name) const {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, Find(name));
  std::vector<std::byte> bytes(info.end - info.begin);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(data_begin_ + info.begin);
  if (file.read(reinterpret_cast<char*>(bytes.data()), info.end - info.begin)) return bytes;
  return absl::UnavailableError(
      absl::StrCat("safetensors file '", path_, "': tensor '", name,
                   "' cannot be read; the file has changed since it was opened"));
}

}  // namespace dtensor
