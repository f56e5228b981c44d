#include "dtensor/hugging_face/load.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "dtensor/hugging_face/fp8_weights.h"
#include "dtensor/hugging_face/model_files.h"
#include "dtensor/hugging_face/mxfp4_weights.h"
#include "dtensor/hugging_face/quantized_weight.h"
#include "dtensor/layout/digest.h"
#include "dtensor/layout/regions.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_folder.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace internal {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Tensors in files that are not parameters.
bool IsPassedOver(absl::string_view name) {
  return absl::EndsWith(name, "rotary_emb.inv_freq") || absl::EndsWith(name, ".attn.bias") ||
         absl::EndsWith(name, ".attn.masked_bias") || absl::EndsWith(name, "position_ids") ||
         absl::EndsWith(name, ".num_batches_tracked");  // of a BatchNorm: batch_norm.h
}

// Paths, with a '.' behind, of layers that predict a second token: DeepSeek-V3's files and those of
// models like it have one behind the others, which Hugging Face's classes pass over, too.
std::vector<std::string> SecondTokenLayers(const SafetensorsFolder& folder) {
  std::vector<std::string> paths;
  for (const auto& [name, tensor] : folder.tensors()) {
    absl::string_view path = name;
    if (absl::ConsumeSuffix(&path, ".eh_proj.weight")) paths.push_back(absl::StrCat(path, "."));
  }
  return paths;
}

// One tensor of the files, and where it goes.
struct Source {
  StoredPart part;
  std::string name;  // in the files
  SafetensorsFolder::Tensor stored;
  QuantizedWeightPtr quantized = nullptr;  // null: it is stored as it is
};
struct Target {
  Parameter* parameter = nullptr;
  std::vector<Source> sources;  // empty: not found so far
  std::string missing;          // the first missing name
};

// Finds everything that the model has, before anything is read.
class Matcher {
 public:
  Matcher(std::string who, const SafetensorsFolder& folder, const ModelFiles& files, Module& model)
      : who_(std::move(who)), folder_(folder), files_(files) {
    model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
      for (StoredPart& part : PartsIn(path, parameter)) names_.insert(std::move(part.name));
    });
  }

  absl::Status Add(const std::string& path, Parameter& parameter) {
    const std::vector<StoredPart> parts = PartsIn(path, parameter);
    if (parts.empty()) return absl::OkStatus();
    if (!parameter.tensor.defined()) {
      return absl::FailedPreconditionError(
          absl::StrCat(who_, "parameter ", path,
                       " has no memory; Materialize the model, or apply a plan to it"));
    }
    const auto [at, fresh] = index_.emplace(&parameter, targets_.size());
    if (fresh) targets_.push_back({.parameter = &parameter});
    Target& target = targets_[at->second];
    std::vector<Source> sources;
    for (const StoredPart& part : parts) {
      const std::optional<Source> found = SourceOf(part);
      if (!found) {
        if (target.missing.empty()) target.missing = files_.name(part.name);
        return absl::OkStatus();
      }
      sources.push_back(*found);
    }
    if (target.sources.empty()) target.sources = std::move(sources);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Target>> Matched(const LoadHuggingFaceOptions& options) && {
    for (Target& target : targets_) {
      if (target.sources.empty()) {
        return InvalidArgument({who_, "'", folder_.path(), "' has no tensor ", target.missing,
                                ", which the model has"});
      }
      for (Source& source : target.sources) {
        DT_RETURN_IF_ERROR(FindQuantized(source));
        DT_RETURN_IF_ERROR(Check(*target.parameter, source));
      }
    }
    const std::vector<std::string> passed_over = SecondTokenLayers(folder_);
    for (const auto& [name, tensor] : folder_.tensors()) {
      if (options.allow_others || used_.contains(name) || IsPassedOver(name)) continue;
      // Not `name` itself: clang before 16 captures no structured binding.
      const absl::string_view called = name;
      const auto begins = [called](absl::string_view path) {
        return absl::StartsWith(called, path);
      };
      if (absl::c_any_of(passed_over, begins)) continue;
      return InvalidArgument({who_, "'", tensor.file->path(), "' has a tensor ",
                              absl::string_view(name), ", which the model lacks; ",
                              files_.others_remedy});
    }
    return std::move(targets_);
  }

 private:
  using Tensors = std::map<std::string, SafetensorsFolder::Tensor, std::less<>>;

  // The tensors of a parameter that such files have, by the model's names; none, if they have none.
  std::vector<StoredPart> PartsIn(const std::string& path, const Parameter& parameter) const {
    if (parameter.is_adapter != files_.adapters) return {};
    return StoredPartsOf(path, parameter);
  }

  // The tensor of the files for the model's `name`.
  Tensors::const_iterator Find(absl::string_view name) const {
    const auto stored = [&](absl::string_view path) {
      return folder_.tensors().find(files_.name(path));
    };
    const auto exact = stored(name);
    if (exact != folder_.tensors().end()) return exact;
    const auto find = [&](absl::string_view other) {  // unless another parameter has this name
      return names_.contains(other) ? folder_.tensors().end() : stored(other);
    };
    for (const absl::string_view base : {"model.", "transformer.", "bert."}) {
      absl::string_view rest = name;
      const auto without = absl::ConsumePrefix(&rest, base) ? find(rest) : folder_.tensors().end();
      if (without != folder_.tensors().end()) return without;
      const auto with = find(absl::StrCat(base, name));
      if (with != folder_.tensors().end()) return with;
    }
    return folder_.tensors().end();
  }

  // The files' tensor or, of a weight in MXFP4, its blocks. Notes what it has besides.
  std::optional<Source> SourceOf(const StoredPart& part) {
    const auto none = folder_.tensors().end();
    if (const auto found = Find(part.name); found != none) {
      used_.insert(found->first);
      if (IsFp8(*found->second.info)) used_.insert(Fp8ScalesName(found->first));
      return Source{part, found->first, found->second};
    }
    const auto blocks = Find(Mxfp4BlocksName(part.name));
    if (blocks == none) return std::nullopt;
    absl::string_view name = blocks->first;
    absl::ConsumeSuffix(&name, Mxfp4BlocksName(""));
    used_.insert({blocks->first, Mxfp4ScalesName(name)});
    return Source{part, std::string(name), blocks->second};
  }

  // Sets source.quantized, if it is.
  absl::Status FindQuantized(Source& source) {
    absl::StatusOr<QuantizedWeightPtr> found = nullptr;
    if (!folder_.tensors().contains(source.name)) {
      found = FindMxfp4(folder_, source.name);
    } else if (IsFp8(*source.stored.info)) {
      if (fp8_block_.empty()) {
        DT_ASSIGN_OR_RETURN(fp8_block_,
                            ReadFp8Block(absl::StrCat(folder_.path(), "/", files_.config)));
      }
      found = FindFp8(folder_, source.name, fp8_block_);
    }
    if (!found.ok()) return InvalidArgument({who_, found.status().message()});
    source.quantized = *std::move(found);
    return absl::OkStatus();
  }

  absl::Status Check(const Parameter& parameter, const Source& source) const {
    const auto refuse = [&](absl::string_view what, absl::string_view wanted) {
      return InvalidArgument({who_, "'", source.stored.file->path(), "': tensor ",
                              absl::string_view(source.name), " is ", what, ", and the model's is ",
                              wanted});
    };
    const SafetensorsInfo& info = *source.stored.info;
    const Dims& shape = source.quantized != nullptr ? source.quantized->shape() : info.shape;
    if (shape != source.part.shape) {
      return refuse(DimsToString(shape), DimsToString(source.part.shape));
    }
    const DType wanted = parameter.dtype;
    const std::optional<DType> stored = source.quantized != nullptr ? DType::kF32 : info.dtype;
    if (stored && (*stored == wanted || (IsFloat(*stored) && IsFloat(wanted)))) {
      return absl::OkStatus();
    }
    return refuse(info.type, absl::StrCat(ToString(wanted), ", to which it is not converted"));
  }

  const std::string who_;
  const SafetensorsFolder& folder_;
  const ModelFiles& files_;
  HashMap<const Parameter*, size_t> index_;
  std::vector<Target> targets_;
  Dims fp8_block_;                            // empty: no tensor in FP8 so far
  std::set<std::string, std::less<>> used_;   // of the files
  std::set<std::string, std::less<>> names_;  // of the model
};

// Loads what one rank holds.
class RegionLoader {
 public:
  explicit RegionLoader(Context& context) : context_(context) {}
  int64_t bytes_read() const { return bytes_read_; }

  absl::Status Load(const Target& target) {
    const DistributedTensor& tensor = target.parameter->tensor;
    const Spec& spec = tensor.spec();
    if (!spec.on_mesh || spec.local_numel == 0) return absl::OkStatus();
    const Region region =
        Regions(spec.layout, spec.shape, spec.layout.mesh().Coordinate(context_.rank()));
    for (const Source& source : target.sources) {
      const StoredPart& part = source.part;
      if (part.is_slice) {
        DT_RETURN_IF_ERROR(LoadSlice(source, region, tensor.local()));
        continue;
      }
      // Row i of the source belongs at the i-th index of `rows` of the parameter.
      const int64_t groups = spec.shape.empty() ? 1 : spec.shape[0] / part.group;
      const IndexRun rows = {part.first, part.rows, part.group, groups};
      DT_RETURN_IF_ERROR(
          LoadMatching(source, IndexSet::FromIntervals({&rows, 1}), region, tensor.local()));
    }
    return absl::OkStatus();
  }

 private:
  // Loads a source that is one index of the parameter's dimension 0, if this rank has it.
  absl::Status LoadSlice(const Source& source, const Region& region, const Tensor& local) {
    const Dims& shape = source.part.shape;
    const IndexSet index = IndexSet::Interval(source.part.first, source.part.first + 1);
    for (const MatchedRun& run : MatchIndexSets(index, region[0])) {
      const Tensor slice =
          local.View(absl::MakeConstSpan(local.shape()).subspan(1),
                     absl::MakeConstSpan(local.strides()).subspan(1), run.dst * local.strides()[0]);
      const IndexSet rows = IndexSet::Interval(0, shape.empty() ? 1 : shape[0]);
      DT_RETURN_IF_ERROR(
          LoadMatching(source, rows, Region(region.begin() + 1, region.end()), slice));
    }
    return absl::OkStatus();
  }

  // Loads the elements of `region`, which `local` has. The source has the indices `rows` of its
  // dimension 0.
  absl::Status LoadMatching(const Source& source, const IndexSet& rows, const Region& region,
                            const Tensor& local) {
    if (region.empty()) return LoadPiece(source, region, local);
    for (const MatchedRun& run : MatchIndexSets(rows, region[0])) {
      for (int64_t j = 0; j < run.count; ++j) {
        DT_RETURN_IF_ERROR(LoadRows(source, region, run.src + j * run.src_stride,
                                    run.dst + j * run.dst_stride, run.length, local));
      }
    }
    return absl::OkStatus();
  }

  // Loads rows [from, from + count) of the source into this rank's rows from `to` on.
  absl::Status LoadRows(const Source& source, Region region, int64_t from, int64_t to,
                        int64_t count, const Tensor& local) {
    const int64_t row_bytes = std::max<int64_t>(1, local.bytes() / local.size(0));
    const int64_t at_once = std::max<int64_t>(1, kPieceBytes / row_bytes);
    for (int64_t done = 0; done < count; done += at_once) {
      const int64_t rows = std::min(at_once, count - done);
      region[0] = IndexSet::Interval(from + done, from + done + rows);
      DT_RETURN_IF_ERROR(LoadPiece(source, region, local.Narrow(0, to + done, rows)));
    }
    return absl::OkStatus();
  }

  absl::Status LoadPiece(const Source& source, absl::Span<const IndexSet> region,
                         const Tensor& to) {
    Device& device = context_.device();
    const DType stored = source.quantized != nullptr ? DType::kF32 : *source.stored.info->dtype;
    bytes_.resize(to.numel() * SizeOf(stored));
    DT_RETURN_IF_ERROR(Read(source, region));
    DT_ASSIGN_OR_RETURN(Tensor piece, Tensor::Empty(device, stored, to.shape()));
    DT_RETURN_IF_ERROR(
        device.CopyFromHost(piece.raw(), bytes_.data(), static_cast<int64_t>(bytes_.size())));
    if (stored != to.dtype()) {
      DT_ASSIGN_OR_RETURN(const Tensor converted, Tensor::Empty(device, to.dtype(), to.shape()));
      DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, piece, converted));
      piece = converted;
    }
    DT_RETURN_IF_ERROR(kernels::Copy(device, piece, to));
    return device.Synchronize();  // before bytes_ is read into again
  }

  // Into bytes_.
  absl::Status Read(const Source& source, absl::Span<const IndexSet> region) {
    if (source.quantized == nullptr) {
      bytes_read_ += static_cast<int64_t>(bytes_.size());
      return source.stored.file->ReadRegion(source.name, region, bytes_.data());
    }
    DT_ASSIGN_OR_RETURN(const int64_t read, source.quantized->ReadRegion(
                                                region, reinterpret_cast<float*>(bytes_.data())));
    bytes_read_ += read;
    return absl::OkStatus();
  }

  Context& context_;
  std::vector<std::byte> bytes_;
  int64_t bytes_read_ = 0;
};

absl::StatusOr<std::vector<Target>> Match(const std::string& who, Module& model,
                                          const SafetensorsFolder& folder, const ModelFiles& files,
                                          const LoadHuggingFaceOptions& options) {
  Matcher matcher(who, folder, files, model);
  absl::Status status;
  model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    if (status.ok()) status = matcher.Add(path, parameter);
  });
  DT_RETURN_IF_ERROR(status);
  return std::move(matcher).Matched(options);
}

Context* ContextOf(Module& model) {
  Context* context = nullptr;
  model.VisitParameters([&](const std::string&, Parameter& parameter) {
    if (parameter.tensor.defined()) context = &parameter.tensor.context();
  });
  return context;
}

// Checks that all ranks have opened the same files, and that these are still in place: no rank may
// have the files from before a replacement while another has those from after it. The error names a
// rank whose files differ from rank 0's.
absl::Status CheckSame(absl::string_view who, Context& context, const SafetensorsFolder& folder,
                       absl::Span<const Target> targets) {
  const absl::StatusOr<std::vector<uint32_t>> crcs = folder.SampledCrc32c();
  DT_RETURN_IF_ERROR(AgreeOn(context, crcs.ok() ? folder.CheckInPlace() : crcs.status()));
  Digest digest;
  for (const uint32_t crc : *crcs) digest.Add(int64_t{crc});
  for (const Target& target : targets) {  // config.json says how blocks are
    for (const Source& source : target.sources) {
      if (source.quantized == nullptr) continue;
      for (const int64_t size : source.quantized->block()) digest.Add(size);
    }
  }
  DT_ASSIGN_OR_RETURN(const int other, FirstUnlikeRank0(context, digest.value()));
  if (other == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(who, "rank ", other, " has other files in '", folder.path(),
                   "' than rank 0; all ranks need the same folder"));
}

}  // namespace

absl::StatusOr<int64_t> LoadFiles(absl::string_view function, Module& model,
                                  const std::string& folder, const ModelFiles& files,
                                  const LoadHuggingFaceOptions& options) {
  const std::string who = absl::StrCat(function, ": ");
  Context* const context = ContextOf(model);
  if (context == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, "no parameter has memory; Materialize the model, or apply a plan to it"));
  }
  const bool is_meta = context->device().is_meta();
  const auto agree = [&](const absl::Status& mine) {
    return is_meta ? mine : AgreeOn(*context, mine);
  };
  const absl::StatusOr<SafetensorsFolder> opened = SafetensorsFolder::Open(folder, files.weights);
  const absl::StatusOr<std::vector<Target>> targets =
      opened.ok() ? Match(who, model, *opened, files, options) : opened.status();
  DT_RETURN_IF_ERROR(agree(targets.status()));
  if (is_meta) return 0;
  DT_RETURN_IF_ERROR(CheckSame(who, *context, *opened, *targets));
  absl::Status status;
  for (const Target& target : *targets) {
    if (status.ok()) status = BeforeWrite(target.parameter->tensor);
  }
  DT_RETURN_IF_ERROR(agree(status));
  RegionLoader loader(*context);
  for (const Target& target : *targets) {
    if (status.ok()) status = loader.Load(target);
  }
  DT_RETURN_IF_ERROR(agree(status));
  return loader.bytes_read();
}

}  // namespace internal

absl::StatusOr<int64_t> LoadHuggingFace(Module& model, const std::string& folder,
                                        const LoadHuggingFaceOptions& options) {
  return internal::LoadFiles("LoadHuggingFace", model, folder, internal::kWholeModel, options);
}

}  // namespace dtensor
