#include "dtensor/runtime/io/safetensors/safetensors_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using nlohmann::json;

// What Hugging Face's library accepts. An index of a million tensors is smaller.
constexpr int64_t kMaxIndexBytes = kMaxSafetensorsHeaderBytes;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Whether it is the name of a file in the folder, and no path that leads elsewhere.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

absl::Status OfIndex(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("'", path, "': ", status.message()));
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view text) {
  const json index = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) return InvalidArgument({"it is no JSON object"});
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return InvalidArgument({"it has no object \"weight_map\", which says where tensors are"});
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>())) {
      return InvalidArgument(
          {"the file of tensor '", absl::string_view(name), "' is no name of a file beside it"});
    }
    files[name] = file.get<std::string>();
  }
  return files;
}

std::string SafetensorsIndexName(absl::string_view file) {
  return absl::StrCat(file, ".index.json");
}

std::string SafetensorsIndexText(const std::map<std::string, std::string>& files,
                                 int64_t total_bytes) {
  json index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = files;
  return absl::StrCat(index.dump(2, ' ', false, json::error_handler_t::replace), "\n");
}

absl::StatusOr<SafetensorsFolder> SafetensorsFolder::Open(const std::string& folder,
                                                          absl::string_view file) {
  SafetensorsFolder out;
  out.path_ = folder;
  const std::string one = absl::StrCat(folder, "/", file);
  const std::string index = absl::StrCat(folder, "/", SafetensorsIndexName(file));
  const auto open = [&out](const std::string& path) -> absl::StatusOr<const SafetensorsReader*> {
    DT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
    out.files_.push_back(std::make_unique<const SafetensorsReader>(std::move(reader)));
    return out.files_.back().get();
  };
  if (Exists(one)) {
    DT_ASSIGN_OR_RETURN(const SafetensorsReader* const reader, open(one));
    for (const auto& [name, info] : reader->tensors()) out.tensors_[name] = {reader, &info};
    return out;
  }
  if (!Exists(index)) {
    return absl::NotFoundError(absl::StrCat("there is neither '", one, "' nor '", index,
                                            "'; give a folder that has one of them"));
  }
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(index, kMaxIndexBytes));
  const auto files = ParseSafetensorsIndex(text);
  if (!files.ok()) return OfIndex(index, files.status());
  std::map<std::string, const SafetensorsReader*> opened;
  for (const auto& [name, of_tensor] : *files) {
    const SafetensorsReader*& reader = opened[of_tensor];
    if (reader == nullptr) {
      DT_ASSIGN_OR_RETURN(reader, open(absl::StrCat(folder, "/", of_tensor)));
    }
    const auto found = reader->tensors().find(name);
    if (found == reader->tensors().end()) {
      return OfIndex(index, InvalidArgument({"tensor '", absl::string_view(name), "' is not in ",
                                             absl::string_view(of_tensor)}));
    }
    out.tensors_[name] = {reader, &found->second};
  }
  return out;
}

absl::Status SafetensorsFolder::CheckInPlace() const {
  for (const auto& file : files_) DT_RETURN_IF_ERROR(file->CheckInPlace());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> SafetensorsFolder::SampledCrc32c() const {
  std::vector<uint32_t> crcs;
  for (const auto& file : files_) {
    DT_ASSIGN_OR_RETURN(crcs.emplace_back(), file->SampledCrc32c());
  }
  return crcs;
}

}  // namespace dtensor
