#include "dtensor/tools/cli/checkpoint/checkpoint_command.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/export.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/program/byte_size.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

using Json = nlohmann::ordered_json;

// A checkpoint that is refused has exit status 2, whatever the library's error code.
absl::StatusOr<CheckpointReader> Open(const CheckpointFlags& flags) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(flags.path);
  if (reader.ok()) return reader;
  return InvalidArgument({reader.status().message()});
}

int64_t BytesOf(const CheckpointTensor& tensor) {
  return NumElements(tensor.shape) * SizeOf(tensor.dtype);
}

// Puts a text of many lines into one.
std::string InOneLine(absl::string_view text) {
  constexpr size_t kMost = 100;
  std::string line = absl::StrReplaceAll(text, {{"\n", "; "}});
  if (line.size() > kMost) line = absl::StrCat(line.substr(0, kMost), "...");
  return line;
}

Json IndexJson(const CheckpointReader& reader) {
  const CheckpointIndex& index = reader.index();
  Json files = Json::array(), tensors = Json::array();
  for (const CheckpointFile& file : index.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  for (const auto& [name, tensor] : index.tensors) {
    tensors.push_back({{"name", name},
                       {"dtype", std::string(ToString(tensor.dtype))},
                       {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                       {"slices", tensor.slices.size()}});
  }
  Json json = {{"checkpoint", reader.path()},
               {"step", index.step},
               {"ranks", index.ranks},
               {"bytes", index.bytes()},
               {"entries", Json(index.entries)}};
  Json aliases = Json::object();
  for (const auto& [alias, name] : index.aliases) aliases[alias] = name;
  json["aliases"] = std::move(aliases);
  json["files"] = std::move(files);
  json["tensors"] = std::move(tensors);
  return json;
}

std::string IndexText(const CheckpointReader& reader) {
  const CheckpointIndex& index = reader.index();
  std::string text = absl::StrFormat("%s: step %d, by %d ranks, %d tensors of %d B in %d files\n",
                                     reader.path(), index.step, index.ranks, index.tensors.size(),
                                     index.bytes(), index.files.size());
  for (const auto& [name, entry] : index.entries) {
    absl::StrAppend(&text, name, " = ", InOneLine(entry), "\n");
  }
  size_t width = 0;
  for (const auto& [name, tensor] : index.tensors) width = std::max(width, name.size());
  for (const auto& [name, tensor] : index.tensors) {
    absl::StrAppendFormat(&text, "%-*s  %-4s %s, %d B in %d slices\n", static_cast<int>(width),
                          name, ToString(tensor.dtype), DimsToString(tensor.shape), BytesOf(tensor),
                          tensor.slices.size());
  }
  for (const auto& [alias, name] : index.aliases) {
    absl::StrAppend(&text, alias, " is ", name, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<Outcome> RunCheckpointShow(const CheckpointFlags& flags, bool json) {
  DT_ASSIGN_OR_RETURN(const CheckpointReader reader, Open(flags));
  return Outcome{json ? JsonText(IndexJson(reader)) : IndexText(reader)};
}

absl::StatusOr<Outcome> RunCheckpointVerify(const CheckpointFlags& flags, bool json) {
  DT_ASSIGN_OR_RETURN(CheckpointReader reader, Open(flags));
  const absl::Status verified = reader.Verify();
  const std::string problem = verified.ok() ? "" : std::string(verified.message());
  if (json) {
    return Outcome{JsonText({{"checkpoint", reader.path()},
                             {"step", reader.index().step},
                             {"bytes", reader.index().bytes()},
                             {"ok", verified.ok()},
                             {"problem", problem}}),
                   verified.ok()};
  }
  if (!verified.ok()) return Outcome{absl::StrCat(problem, "\n"), false};
  return Outcome{absl::StrFormat("%s: all %d tensors, %d B, are what was written\n", reader.path(),
                                 reader.index().tensors.size(), reader.index().bytes())};
}

absl::StatusOr<Outcome> RunCheckpointExport(const CheckpointFlags& flags, bool json) {
  const absl::StatusOr<int64_t> size = ParseByteSize(flags.max_file_bytes);
  if (!size.ok() || *size < 1) {
    return InvalidArgument({"--max-file-bytes: '", flags.max_file_bytes,
                            "' is no number of bytes above 0; write it as 5GB"});
  }
  DT_ASSIGN_OR_RETURN(CheckpointReader reader, Open(flags));
  const absl::StatusOr<std::vector<std::string>> files =
      ExportCheckpoint(reader, flags.folder, {.max_file_bytes = *size});
  if (absl::IsAlreadyExists(files.status()) || absl::IsInvalidArgument(files.status())) {
    return InvalidArgument({files.status().message()});
  }
  if (!files.ok()) return absl::InternalError(files.status().message());
  if (json) {
    return Outcome{
        JsonText({{"checkpoint", reader.path()}, {"folder", flags.folder}, {"files", *files}})};
  }
  return Outcome{absl::StrCat("wrote ", absl::StrJoin(*files, ", "), " into ", flags.folder, "\n")};
}

}  // namespace dtensor::cli
