#include "dtensor/checkpoint/checkpoint_reader.h"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/folder.h"
#include "dtensor/checkpoint/region_runs.h"
#include "dtensor/checkpoint/slice_file.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"

namespace dtensor {
namespace {

// The index has a line per slice; this allows tens of millions of slices.
constexpr int64_t kMaxIndexBytes = int64_t{4} << 30;
constexpr size_t kOpenFiles = 32;

// Ranks that are threads have one limit of open files together. Half of it is the program's. Beyond
// the other half a reader opens a file in place of one of its own, so that it has one at least.
bool IsFull() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(SliceFileReader::num_open()) >= limit.rlim_cur / 2;
}

int64_t BytesOf(const CheckpointTensor& tensor, const CheckpointSlice& slice) {
  return NumElements(slice.region) * SizeOf(tensor.dtype);
}

bool IsWithin(const Region& region, const Dims& shape) {
  if (region.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    for (const IndexRun& run : region[d].runs()) {
      if (run.begin < 0 || run.end() > shape[d]) return false;
    }
  }
  return true;
}

}  // namespace

CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path,
                                                        FileSystem& files) {
  CheckpointReader reader;
  reader.files_ = &files;
  DT_ASSIGN_OR_RETURN(reader.path_, FindCheckpoint(path, files));
  const std::string index = absl::StrCat(reader.path_, "/", kCheckpointIndexFile);
  DT_ASSIGN_OR_RETURN(const std::string text, ReadText(files, index, kMaxIndexBytes));
  absl::StatusOr<CheckpointIndex> parsed = CheckpointIndex::Parse(text);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat("'", index, "': ", parsed.status().message()));
  }
  reader.index_ = *std::move(parsed);
  reader.index_crc32c_ = Crc32c(0, text.data(), text.size());
  return reader;
}

absl::StatusOr<SliceFileReader*> CheckpointReader::FileOf(size_t file) {
  const auto at = std::find_if(open_.begin(), open_.end(),
                               [file](const auto& open) { return open.first == file; });
  if (at != open_.end()) {
    open_.splice(open_.begin(), open_, at);
    return at->second.get();
  }
  if (open_.size() == kOpenFiles || (!open_.empty() && IsFull())) open_.pop_back();
  DT_ASSIGN_OR_RETURN(auto opened, SliceFileReader::Open(*files_, path_, index_.files[file]));
  open_.emplace_front(file, std::move(opened));
  return open_.front().second.get();
}

absl::Status CheckpointReader::ReadSlice(const CheckpointTensor& tensor,
                                         const CheckpointSlice& slice, const Region& region,
                                         char* elements, int64_t& found) {
  const int64_t size = SizeOf(tensor.dtype), slice_bytes = BytesOf(tensor, slice);
  SliceFileReader* file = nullptr;  // opened when something of it is needed
  return VisitCommonRuns(slice.region, region, [&](const RegionRun& run) {
    if (file == nullptr) {
      DT_ASSIGN_OR_RETURN(file, FileOf(slice.file));
    }
    found += run.length;
    bytes_read_ += run.length * size;
    return file->Read(slice, slice_bytes, run.src * size, run.length * size,
                      elements + run.dst * size);
  });
}

absl::Status CheckpointReader::Read(absl::string_view name, const Region& region, void* elements) {
  const CheckpointTensor* const tensor = index_.Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint '", path_, "' has no tensor '", Shortened(name), "'"));
  }
  if (!IsWithin(region, tensor->shape)) {
    return OfSafetensor(name, InvalidArgument({"checkpoint '", path_, "' has it with the shape ",
                                               DimsToString(tensor->shape), ", and ",
                                               ToString(region), " is read"}));
  }
  int64_t found = 0;
  for (const CheckpointSlice& slice : tensor->slices) {
    const absl::Status status =
        ReadSlice(*tensor, slice, region, static_cast<char*>(elements), found);
    if (!status.ok()) return OfSafetensor(name, status);
  }
  if (found == NumElements(region)) return absl::OkStatus();
  return OfSafetensor(name, absl::DataLossError(absl::StrCat(
                                "the index of checkpoint '", path_, "' has ", found, " of its ",
                                NumElements(region), " elements in ", ToString(region))));
}

absl::Status CheckpointReader::Verify() {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<char> piece(kPiece);
  for (const auto& [name, tensor] : index_.tensors) {
    for (const CheckpointSlice& slice : tensor.slices) {
      const absl::StatusOr<SliceFileReader*> file = FileOf(slice.file);
      if (!file.ok()) return OfSafetensor(name, file.status());
      const int64_t bytes = BytesOf(tensor, slice);
      for (int64_t at = 0; at < bytes; at += kPiece) {
        const absl::Status status =
            (*file)->Read(slice, bytes, at, std::min(kPiece, bytes - at), piece.data());
        if (!status.ok()) return OfSafetensor(name, status);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace dtensor
