#include "dtensor/hugging_face/save.h"

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "dtensor/hugging_face/model_files.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_folder.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "dtensor/runtime/kernels/read_bytes.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/local_cast.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace internal {
namespace {

// One path of a parameter, and what is saved under it.
struct SavedParameter {
  std::string path;
  Parameter* parameter;
  std::vector<SafetensorsEntry> entries;  // of its parts
  int64_t bytes = 0;
};

DType TypeOf(const Parameter& parameter, const SaveHuggingFaceOptions& options) {
  return IsFloat(parameter.dtype) ? options.dtype.value_or(parameter.dtype) : parameter.dtype;
}

absl::StatusOr<std::vector<SavedParameter>> ItemsOf(absl::string_view who, Module& model,
                                                    const ModelFiles& files,
                                                    const SaveHuggingFaceOptions& options) {
  if (options.max_file_bytes < 1 || (options.dtype && !IsFloat(*options.dtype))) {
    return InvalidArgument({who, "files have at least a byte, and floats a type of floats"});
  }
  std::vector<SavedParameter> items;
  std::string missing;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (parameter.is_adapter != files.adapters) return;
    if (!parameter.tensor.defined()) missing = path;
    SavedParameter& item = items.emplace_back(SavedParameter{path, &parameter, {}});
    for (const StoredPart& part : StoredPartsOf(path, parameter)) {
      const DType dtype = TypeOf(parameter, options);
      item.entries.push_back({files.name(part.name), dtype, part.shape});
      item.bytes += NumElements(part.shape) * SizeOf(dtype);
    }
  });
  if (items.empty()) {
    return InvalidArgument({who, files.adapters
                                     ? "no layer of the model has an adapter; AddLora gives them"
                                     : "the model has no parameters"});
  }
  if (files.adapters && options.config.empty()) {
    return InvalidArgument({who, "there is no config; give LoraToJson of the adapter's options"});
  }
  if (missing.empty()) return items;
  return absl::FailedPreconditionError(
      absl::StrCat(who, "parameter ", missing, " has no memory; there is nothing to save"));
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

// "model.safetensors", or "model-00001-of-00002.safetensors".
std::string FileName(absl::string_view weights, size_t number, size_t files) {
  if (files == 1) return std::string(weights);
  absl::ConsumeSuffix(&weights, ".safetensors");
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", weights, number + 1, files);
}

// Whether a file with this name would be read instead of what is saved, or belongs to an earlier
// model.
bool IsOfModel(absl::string_view weights, absl::string_view name) {
  if (name == weights || name == SafetensorsIndexName(weights)) return true;
  size_t number = 0, files = 0;
  const std::vector<absl::string_view> words = absl::StrSplit(name, absl::ByAnyChar("-."));
  return words.size() == 5 && absl::SimpleAtoi(words[1], &number) &&
         absl::SimpleAtoi(words[3], &files) && number > 0 && files > 1 &&
         name == FileName(weights, number - 1, files);
}

// The whole of `tensor`, on rank `to` only.
TensorOr WholeOn(int to, const DistributedTensor& tensor) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh there, DeviceMesh().OnRanks({to}));
  return tensor.Detach().Redistribute(Layout::Replicated(there, tensor.ndim()));
}

// The elements of a tensor that lies on this rank only.
absl::StatusOr<std::vector<std::byte>> BytesOf(const DistributedTensor& tensor, DType dtype) {
  Context& context = tensor.context();
  DT_ASSIGN_OR_RETURN(const DistributedTensor cast, LocalCast(tensor, dtype));
  const Tensor& local = cast.local();
  std::vector<std::byte> bytes;
  bytes.reserve(local.bytes());
  const absl::Status read = kernels::ReadBytes(local, [&](const char* piece, int64_t size) {
    const auto* const first = reinterpret_cast<const std::byte*>(piece);
    bytes.insert(bytes.end(), first, first + size);
    return absl::OkStatus();
  });
  if (!read.ok()) return context.communicator().Fail(read);
  return bytes;
}

// Writes on one rank, while the others send it what they hold; they have no folder. File errors are
// reported only after all have sent theirs.
class Writer {
 public:
  Writer(std::string who, absl::string_view weights, Context& context, int to, FileSystem& files)
      : who_(std::move(who)),
        weights_(weights),
        context_(context),
        files_(files),
        to_(to),
        writes_(context.rank() == to) {}

  // Collective, as are all of these functions.
  absl::Status Begin(const std::string& folder) {
    absl::Status status;
    if (writes_) {
      absl::StatusOr<AtomicFolder> made = AtomicFolder::Create(files_, folder);
      status = made.status();
      if (made.ok()) folder_.emplace(*std::move(made));
    }
    return Agree(status);
  }

  absl::Status WriteTensors(const std::string& name, const File& items) {
    absl::Status wrong;
    std::unique_ptr<OutputFile> file;
    if (writes_) wrong = Create(name, items, file);
    for (const SavedParameter& item : items) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor whole, WholeOn(to_, item.parameter->tensor));
      if (!writes_) continue;
      DT_ASSIGN_OR_RETURN(const StateDict parts, PartsOf(item.path, *item.parameter, whole));
      const std::vector<StoredPart> stored = StoredPartsOf(item.path, *item.parameter);
      for (size_t i = 0; i < stored.size(); ++i) {
        const SafetensorsEntry& entry = item.entries[i];
        DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                            BytesOf(parts.at(stored[i].name), entry.dtype));
        if (file && wrong.ok()) {
          wrong = OfTensor(entry.name, file->Append(bytes.data(), bytes.size()));
        }
      }
    }
    if (file && wrong.ok()) wrong = file->Sync();
    return Agree(wrong);
  }

  absl::Status Finish(const std::map<std::string, std::string>& texts) {
    absl::Status status;
    for (const auto& [name, text] : texts) {
      if (writes_ && status.ok()) status = WriteText(files_, PathOf(name), text);
    }
    if (writes_ && status.ok()) {
      status =
          folder_->Commit([this](absl::string_view name) { return IsOfModel(weights_, name); });
    }
    return Agree(status);
  }

 private:
  absl::Status Agree(const absl::Status& mine) {
    if (mine.ok()) return AgreeOn(context_, mine);
    return AgreeOn(context_, absl::Status(mine.code(), absl::StrCat(who_, mine.message())));
  }
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(folder_->path(), "/", name);
  }
  static absl::Status OfTensor(const std::string& name, const absl::Status& status) {
    return status.ok() ? status : OfSafetensor(name, status);
  }

  absl::Status Create(const std::string& name, const File& items,
                      std::unique_ptr<OutputFile>& file) {
    std::vector<SafetensorsEntry> entries;
    for (const SavedParameter& item : items) {
      entries.insert(entries.end(), item.entries.begin(), item.entries.end());
    }
    DT_ASSIGN_OR_RETURN(const std::string begin, SafetensorsBegin(entries, {{"format", "pt"}}));
    DT_ASSIGN_OR_RETURN(file, files_.CreateFile(PathOf(name)));
    return file->Append(begin.data(), begin.size());
  }

  const std::string who_;
  const absl::string_view weights_;
  Context& context_;
  FileSystem& files_;
  const int to_;
  const bool writes_;
  std::optional<AtomicFolder> folder_;
};

// `config`, of weights that are not quantized.
std::string PlainConfig(const std::string& config) {
  auto json = nlohmann::ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.erase("quantization_config") == 0) return config;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// The files that are not tensors. Errors: what save.h says about `others`.
absl::StatusOr<std::map<std::string, std::string>> TextsOf(absl::string_view who,
                                                           const ModelFiles& files,
                                                           const SaveHuggingFaceOptions& options) {
  std::map<std::string, std::string> texts = options.others;
  for (const auto& [name, text] : options.others) {
    const bool is_name = !name.empty() && name != "." && name != ".." &&
                         name.find_first_of(std::string("/\0", 2)) == name.npos;
    if (is_name && !IsOfModel(files.weights, name) && name != files.config) continue;
    return InvalidArgument(
        {who, "others: '", name, "' is no name of a file beside those that ", "are written"});
  }
  if (!options.config.empty()) texts[std::string(files.config)] = PlainConfig(options.config);
  return texts;
}

}  // namespace

absl::Status SaveFiles(absl::string_view function, Module& model, const std::string& folder,
                       const ModelFiles& files, const SaveHuggingFaceOptions& options) {
  const std::string who = absl::StrCat(function, ": ");
  DT_ASSIGN_OR_RETURN(std::vector<SavedParameter> items, ItemsOf(who, model, files, options));
  DT_ASSIGN_OR_RETURN(auto texts, TextsOf(who, files, options));
  const DistributedTensor& first = items[0].parameter->tensor;
  Context& context = first.context();
  if (context.device().is_meta()) {
    return absl::FailedPreconditionError(absl::StrCat(who, "there are no values on meta"));
  }
  Writer writer(who, files.weights, context, first.mesh().RankOf(0),
                options.files != nullptr ? *options.files : FileSystem::OfThisMachine());
  DT_RETURN_IF_ERROR(writer.Begin(folder));
  const int64_t most =
      files.adapters ? std::numeric_limits<int64_t>::max() : options.max_file_bytes;
  const std::vector<File> in_files = InFiles(std::move(items), most);
  std::map<std::string, std::string> index;
  int64_t bytes = 0;
  for (size_t i = 0; i < in_files.size(); ++i) {
    const std::string name = FileName(files.weights, i, in_files.size());
    DT_RETURN_IF_ERROR(writer.WriteTensors(name, in_files[i]));
    for (const SavedParameter& item : in_files[i]) {
      bytes += item.bytes;
      for (const SafetensorsEntry& entry : item.entries) index[entry.name] = name;
    }
  }
  if (in_files.size() > 1)
    texts[SafetensorsIndexName(files.weights)] = SafetensorsIndexText(index, bytes);
  return writer.Finish(texts);
}

}  // namespace internal

absl::Status SaveHuggingFace(Module& model, const std::string& folder,
                             const SaveHuggingFaceOptions& options) {
  std::string adapter;
  model.VisitParameters([&](const std::string& path, const Parameter& parameter) {
    if (parameter.is_adapter) adapter = path;
  });
  if (!adapter.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SaveHuggingFace: ", adapter,
        " is of an adapter, which a model's files lack; MergeLora first, or SaveAdapter"));
  }
  return internal::SaveFiles("SaveHuggingFace", model, folder, internal::kWholeModel, options);
}

}  // namespace dtensor
