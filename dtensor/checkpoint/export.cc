#include "dtensor/checkpoint/export.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/io/temporary_name.h"

namespace dtensor {
namespace {

constexpr int64_t kPieceBytes = 16 << 20;
constexpr absl::string_view kIndexName = "model.safetensors.index.json";

int64_t BytesOf(const CheckpointTensor& tensor) {
  return NumElements(tensor.shape) * SizeOf(tensor.dtype);
}

// The names of the tensors in each file.
using FileNames = std::vector<std::vector<std::string>>;

FileNames Distribute(const CheckpointIndex& index, int64_t max_file_bytes) {
  FileNames files;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : index.tensors) {
    if (absl::StartsWith(name, kOptimizerNames)) continue;
    if (files.empty() || bytes + BytesOf(tensor) > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(name);
    bytes += BytesOf(tensor);
  }
  return files;
}

std::string FileName(size_t file, size_t files) {
  if (files == 1) return "model.safetensors";
  return absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, files);
}

class Exporter {
 public:
  Exporter(CheckpointReader& reader, const std::string& folder, FileSystem& files)
      : reader_(reader), folder_(folder), files_(files) {}

  // Checks that nothing has these names, whatever kind of entry it is.
  absl::Status CheckFree(const std::vector<std::string>& names) {
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> there, files_.List(folder_));
    for (const std::string& name : names) {
      if (std::find(there.begin(), there.end(), name) != there.end()) return IsThere(name);
    }
    return absl::OkStatus();
  }

  // Removes what was left by processes that were killed.
  void RemoveAbandoned(const std::vector<std::string>& names) {
    const absl::StatusOr<std::vector<std::string>> there = files_.List(folder_);
    if (!there.ok()) return;
    for (const std::string& other : *there) {
      const bool left = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return IsAbandoned(other, name);
      });
      if (left) files_.Remove(PathOf(other)).IgnoreError();
    }
  }

  absl::Status WriteTensors(const std::string& file, const std::vector<std::string>& names) {
    std::vector<SafetensorsEntry> entries;
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
    for (const std::string& name : names) {
      const CheckpointTensor& tensor = index().tensors.at(name);
      entries.push_back({name, tensor.dtype, tensor.shape, nullptr});
      for (const auto& [alias, of] : index().aliases) {
        if (of == name) metadata[alias] = name;
      }
    }
    DT_ASSIGN_OR_RETURN(const std::string begin, SafetensorsBegin(entries, metadata));
    return Write(file, [&](OutputFile& output) -> absl::Status {
      DT_RETURN_IF_ERROR(output.Append(begin.data(), begin.size()));
      for (const std::string& name : names) DT_RETURN_IF_ERROR(AppendTensor(name, output));
      return absl::OkStatus();
    });
  }

  // {"metadata": {"total_size": N}, "weight_map": {NAME: FILE}}
  absl::Status WriteIndex(const FileNames& files) {
    int64_t total = 0;
    std::string map;
    for (size_t i = 0; i < files.size(); ++i) {
      for (const std::string& name : files[i]) {
        total += BytesOf(index().tensors.at(name));
        absl::StrAppend(&map, map.empty() ? "" : ",", "\n    ", *JsonQuoted(name), ": \"",
                        FileName(i, files.size()), "\"");
      }
    }
    const std::string text = absl::StrCat("{\n  \"metadata\": {\n    \"total_size\": ", total,
                                          "\n  },\n  \"weight_map\": {", map, "\n  }\n}\n");
    return Write(std::string(kIndexName),
                 [&](OutputFile& output) { return output.Append(text.data(), text.size()); });
  }

 private:
  const CheckpointIndex& index() const { return reader_.index(); }
  std::string PathOf(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }

  absl::Status IsThere(const std::string& name) const {
    return absl::AlreadyExistsError(
        absl::StrCat("'", PathOf(name), "' is there; remove it, or take another folder"));
  }

  absl::Status Write(const std::string& name,
                     const std::function<absl::Status(OutputFile&)>& append) {
    const std::string temporary = PathOf(TemporaryName(name));
    absl::Status status = CreateAndSync(temporary, append);
    if (status.ok()) status = Publish(temporary, name);
    files_.Remove(temporary).IgnoreError();
    DT_RETURN_IF_ERROR(status);
    return files_.SyncFolder(folder_);
  }

  // Never replaces a file that has appeared meanwhile.
  absl::Status Publish(const std::string& temporary, const std::string& name) {
    const absl::Status linked = files_.Link(temporary, PathOf(name));
    if (absl::IsAlreadyExists(linked)) return IsThere(name);
    if (linked.ok()) return linked;
    // The file system has no hard links.
    DT_RETURN_IF_ERROR(CheckFree({name}));
    return files_.Rename(temporary, PathOf(name));
  }

  absl::Status CreateAndSync(const std::string& path,
                             const std::function<absl::Status(OutputFile&)>& append) {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> output, files_.CreateFile(path));
    DT_RETURN_IF_ERROR(append(*output));
    return output->Sync();
  }

  // Copies some rows at a time.
  absl::Status AppendTensor(const std::string& name, OutputFile& output) {
    const CheckpointTensor& tensor = index().tensors.at(name);
    if (BytesOf(tensor) == 0) return absl::OkStatus();
    Region region;
    for (const int64_t size : tensor.shape) region.push_back(IndexSet::Interval(0, size));
    const int64_t rows = region.empty() ? 1 : tensor.shape[0];
    const int64_t row_bytes = BytesOf(tensor) / rows;
    const int64_t at_once = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, rows);
    piece_.resize(std::max<size_t>(piece_.size(), at_once * row_bytes));
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t end = std::min(row + at_once, rows);
      if (!region.empty()) region[0] = IndexSet::Interval(row, end);
      DT_RETURN_IF_ERROR(reader_.Read(name, region, piece_.data()));
      DT_RETURN_IF_ERROR(output.Append(piece_.data(), (end - row) * row_bytes));
    }
    return absl::OkStatus();
  }

  CheckpointReader& reader_;
  const std::string folder_;
  FileSystem& files_;
  std::vector<char> piece_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ExportCheckpoint(CheckpointReader& reader,
                                                          const std::string& folder,
                                                          const ExportOptions& options,
                                                          FileSystem& files) {
  const FileNames tensors = Distribute(reader.index(), options.max_file_bytes);
  if (tensors.empty()) {
    return InvalidArgument({"checkpoint '", reader.path(), "' has no tensors of a model"});
  }
  // Files of a model have no adapters (nn/lora.h), and its weights alone are not what was trained.
  for (const auto& [name, tensor] : reader.index().tensors) {
    if (!absl::EndsWith(name, ".lora_A") || absl::StartsWith(name, kOptimizerNames)) continue;
    return InvalidArgument({"checkpoint '", reader.path(), "' has an adapter, ", name,
                            ", which a model's files lack; load it, and save the adapter or merge "
                            "it (SaveAdapter, MergeLora)"});
  }
  std::vector<std::string> written;
  for (size_t i = 0; i < tensors.size(); ++i) written.push_back(FileName(i, tensors.size()));
  if (tensors.size() > 1) written.emplace_back(kIndexName);
  DT_RETURN_IF_ERROR(MakeFolders(files, folder));
  Exporter exporter(reader, folder, files);
  // A model.safetensors would be read instead of several files, so it must not be there either.
  std::vector<std::string> wanted = written;
  wanted.push_back(FileName(0, 1));
  DT_RETURN_IF_ERROR(exporter.CheckFree(wanted));
  exporter.RemoveAbandoned(wanted);
  for (size_t i = 0; i < tensors.size(); ++i) {
    DT_RETURN_IF_ERROR(exporter.WriteTensors(written[i], tensors[i]));
  }
  if (tensors.size() > 1) DT_RETURN_IF_ERROR(exporter.WriteIndex(tensors));
  return written;
}

}  // namespace dtensor
