#include "dtensor/hugging_face/save.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/runtime/io/safetensors.h"
#include "dtensor/runtime/io/safetensors_folder.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

constexpr absl::string_view kWho = "SaveHuggingFace: ";

// One parameter's path, and what becomes of it.
struct SavedParameter {
  std::string path;
  Parameter* parameter;
  std::vector<SafetensorsEntry> entries;  // of its parts
  int64_t bytes = 0;
};

DType TypeOf(const Parameter& parameter, const SaveHuggingFaceOptions& options) {
  return IsFloat(parameter.dtype) ? options.dtype.value_or(parameter.dtype) : parameter.dtype;
}

absl::StatusOr<std::vector<SavedParameter>> ItemsOf(Module& model,
                                                    const SaveHuggingFaceOptions& options) {
  if (options.max_file_bytes < 1 || (options.dtype && !IsFloat(*options.dtype))) {
    return InvalidArgument({kWho, "files have at least a byte, and floats a type of floats"});
  }
  std::vector<SavedParameter> items;
  std::string missing;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!parameter.tensor.defined()) missing = path;
    SavedParameter& item = items.emplace_back(SavedParameter{path, &parameter, {}});
    for (const StoredPart& part : StoredPartsOf(path, parameter)) {
      const DType dtype = TypeOf(parameter, options);
      item.entries.push_back({part.name, dtype, part.shape});
      item.bytes += NumElements(part.shape) * SizeOf(dtype);
    }
  });
  if (items.empty()) return InvalidArgument({kWho, "the model has no parameters"});
  if (missing.empty()) return items;
  return absl::FailedPreconditionError(
      absl::StrCat(kWho, "parameter ", missing, " has no memory; there is nothing to save"));
}

using File = std::vector<SavedParameter>;

std::vector<File> InFiles(std::vector<SavedParameter> items, int64_t max_bytes) {
  std::vector<File> files;
  int64_t bytes = 0;
  for (SavedParameter& item : items) {
    if (files.empty() || bytes + item.bytes > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += item.bytes;
    files.back().push_back(std::move(item));
  }
  return files;
}

std::string FileName(size_t number, size_t files) {
  if (files == 1) return std::string(kSafetensorsFile);
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number + 1, files);
}

// The elements of `tensor`, all of them, on rank `to` alone; nothing on others.
absl::StatusOr<std::vector<std::byte>> BytesOn(int to, DistributedTensor tensor, DType dtype) {
  Context& context = tensor.context();
  const NoGrad no_grad(context);
  DT_ASSIGN_OR_RETURN(tensor, Cast(tensor, dtype));
  DT_ASSIGN_OR_RETURN(const DeviceMesh there, DeviceMesh().OnRanks({to}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                      tensor.Redistribute(Layout::Replicated(there, tensor.ndim())));
  if (context.rank() != to) return std::vector<std::byte>();
  Device& device = context.device();
  const auto read = [&]() -> absl::StatusOr<std::vector<std::byte>> {
    DT_ASSIGN_OR_RETURN(const Tensor local, kernels::Contiguous(device, whole.local()));
    std::vector<std::byte> bytes(local.bytes());
    DT_RETURN_IF_ERROR(device.CopyToHost(bytes.data(), local.raw(), local.bytes()));
    DT_RETURN_IF_ERROR(device.Synchronize());
    return bytes;
  };
  absl::StatusOr<std::vector<std::byte>> bytes = read();
  if (!bytes.ok()) return context.communicator().Fail(bytes.status());
  return bytes;
}

// One file, on rank `to`; the others bring it what they hold. What goes wrong with the file is told
// when all have done so.
absl::Status WriteFile(Context& context, int to, const std::string& path, const File& items) {
  absl::Status wrong;
  std::optional<SafetensorsWriter> file;
  if (context.rank() == to) {
    std::vector<SafetensorsEntry> entries;
    for (const SavedParameter& item : items) {
      entries.insert(entries.end(), item.entries.begin(), item.entries.end());
    }
    auto made = SafetensorsWriter::Create(path, entries, {{"format", "pt"}});
    wrong = made.status();
    if (made.ok()) file.emplace(*std::move(made));
  }
  for (const SavedParameter& item : items) {
    DT_ASSIGN_OR_RETURN(const StateDict parts,
                        PartsOf(item.path, *item.parameter, item.parameter->tensor.Detach()));
    for (const SafetensorsEntry& entry : item.entries) {
      DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                          BytesOn(to, parts.at(entry.name), entry.dtype));
      if (file && wrong.ok()) wrong = file->Append(bytes.data(), bytes.size());
    }
  }
  if (file && wrong.ok()) wrong = file->Commit();
  return AgreeOn(context, wrong);
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(kWho, "cannot make '", folder, "': ", error.message()));
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(kWho, "cannot remove '", path,
                                             "', which would be read ",
                                             "in place of what was saved: ", error.message()));
}

}  // namespace

absl::Status SaveHuggingFace(Module& model, const std::string& folder,
                             const SaveHuggingFaceOptions& options) {
  DT_ASSIGN_OR_RETURN(std::vector<SavedParameter> items, ItemsOf(model, options));
  const DistributedTensor& first = items[0].parameter->tensor;
  Context& context = first.context();
  if (context.device().is_meta()) {
    return absl::FailedPreconditionError(absl::StrCat(kWho, "there are no values on meta"));
  }
  const int to = first.mesh().RankOf(0);
  const bool writes = context.rank() == to;
  DT_RETURN_IF_ERROR(AgreeOn(context, writes ? MakeFolder(folder) : absl::OkStatus()));
  const std::vector<File> files = InFiles(std::move(items), options.max_file_bytes);
  std::map<std::string, std::string> index;
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = FileName(i, files.size());
    DT_RETURN_IF_ERROR(WriteFile(context, to, absl::StrCat(folder, "/", name), files[i]));
    for (const SavedParameter& item : files[i]) {
      bytes += item.bytes;
      for (const SafetensorsEntry& entry : item.entries) index[entry.name] = name;
    }
  }
  absl::Status status;
  if (writes && !options.config.empty()) {
    status = WriteFileAtomically(absl::StrCat(folder, "/config.json"), options.config);
  }
  for (const auto& [name, text] : options.others) {
    if (writes && status.ok()) status = WriteFileAtomically(absl::StrCat(folder, "/", name), text);
  }
  if (writes && status.ok() && files.size() > 1) {
    status = WriteFileAtomically(absl::StrCat(folder, "/", kSafetensorsIndex),
                                 SafetensorsIndexText(index, bytes));
    if (status.ok()) status = Remove(absl::StrCat(folder, "/", kSafetensorsFile));
  }
  return AgreeOn(context, status);
}

}  // namespace dtensor
