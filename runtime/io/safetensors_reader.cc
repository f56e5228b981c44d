#include "dtensor/runtime/io/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors_format.h"

namespace dtensor {
namespace {

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
  if (length > static_cast<uint64_t>(std::min(file_bytes - 8, kMaxSafetensorsHeaderBytes))) {
    return InvalidArgument({"it is ", absl::StrCat(file_bytes), " B long, and its header ",
                            absl::StrCat(length), " B; a header ends within the file, and has ",
                            absl::StrCat(kMaxSafetensorsHeaderBytes), " B or less"});
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

// "'a', 'b'", and no more than ten.
std::string Names(const std::map<std::string, SafetensorsInfo, std::less<>>& tensors) {
  constexpr size_t kMost = 10;
  std::vector<std::string> names;
  for (const auto& [name, info] : tensors) {
    if (names.size() == kMost) break;
    names.push_back(absl::StrCat("'", name, "'"));
  }
  const size_t others = tensors.size() - names.size();
  return absl::StrCat(names.empty() ? "none" : Shortened(absl::StrJoin(names, ", ")),
                      others == 0 ? "" : absl::StrCat(" and ", others, " others"));
}

}  // namespace

absl::Status SafetensorsReader::CheckOffsets(int64_t data_bytes) const {
  std::vector<const std::pair<const std::string, SafetensorsInfo>*> ascending;
  for (const auto& tensor : header_.tensors) ascending.push_back(&tensor);
  std::sort(ascending.begin(), ascending.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t end = 0;
  for (const auto* tensor : ascending) {
    const SafetensorsInfo& info = tensor->second;
    if (info.begin != end) {
      return OfSafetensor(
          tensor->first,
          InvalidArgument({"it begins at byte ", absl::StrCat(info.begin),
                           ", and those before it end at ", absl::StrCat(end),
                           "; tensors have no gaps between them and do not overlap"}));
    }
    if (info.end > data_bytes) {
      return OfSafetensor(tensor->first,
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
  absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(*header);
  if (!parsed.ok()) return OfFile(path, parsed.status());
  reader.header_ = *std::move(parsed);
  DT_RETURN_IF_ERROR(OfFile(path, reader.CheckOffsets(file_bytes - reader.data_begin_)));
  return reader;
}

absl::StatusOr<SafetensorsInfo> SafetensorsReader::Find(absl::string_view name) const {
  const auto found = tensors().find(name);
  if (found != tensors().end()) return found->second;
  return absl::NotFoundError(absl::StrCat("safetensors file '", path_, "' has no tensor '",
                                          Shortened(name), "'; it has ", Names(tensors())));
}

absl::StatusOr<std::vector<std::byte>> SafetensorsReader::Read(absl::string_view name) const {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, Find(name));
  std::vector<std::byte> bytes(info.end - info.begin);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(data_begin_ + info.begin);
  if (file.read(reinterpret_cast<char*>(bytes.data()), info.end - info.begin)) return bytes;
  return absl::UnavailableError(
      absl::StrCat("safetensors file '", path_, "': tensor '", Shortened(name),
                   "' cannot be read; the file has changed since it was opened"));
}

}  // namespace dtensor
