#include "dtensor/runtime/io/safetensors/safetensors_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"

namespace dtensor {
namespace {

absl::Status CheckOrdinary(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat("there is no file '", path, "'"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return InvalidArgument({"'", path, "' is no ordinary file"});
  }
  return absl::OkStatus();
}

// If this process or machine has too many open files, that says nothing about this one.
absl::Status CannotOpen(const std::string& path, int reason) {
  const std::string message =
      absl::StrCat("cannot read '", path, "': ", std::generic_category().message(reason));
  if (reason != EMFILE && reason != ENFILE) return absl::NotFoundError(message);
  return absl::ResourceExhaustedError(absl::StrCat(message, "; raise `ulimit -n`"));
}

// Reads stretches of a file in order. Adjacent stretches are read together.
class StretchReader {
 public:
  StretchReader(int descriptor, std::byte* out) : descriptor_(descriptor), out_(out) {}

  bool Add(int64_t begin, int64_t bytes) {
    if (begin == begin_ + bytes_) {
      bytes_ += bytes;
      return true;
    }
    if (!Flush()) return false;
    begin_ = begin;
    bytes_ = bytes;
    return true;
  }
  // Returns false if the file ends too early or cannot be read.
  bool Flush() {
    while (bytes_ > 0) {
      const ssize_t got = pread(descriptor_, out_, bytes_, begin_);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out_ += got;
      begin_ += got;
      bytes_ -= got;
    }
    return true;
  }

 private:
  const int descriptor_;
  std::byte* out_;
  int64_t begin_ = 0, bytes_ = 0;
};

bool ReadAt(int descriptor, int64_t begin, size_t bytes, void* out) {
  StretchReader reader(descriptor, static_cast<std::byte*>(out));
  return reader.Add(begin, static_cast<int64_t>(bytes)) && reader.Flush();
}

// Reads as many bytes as the length at the beginning of the file says.
absl::StatusOr<std::string> ReadHeader(int descriptor, int64_t file_bytes) {
  std::array<unsigned char, 8> prefix = {};
  if (file_bytes < 8 || !ReadAt(descriptor, 0, 8, prefix.data())) {
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
  if (ReadAt(descriptor, 8, length, text.data())) return text;
  return InvalidArgument({"its header cannot be read"});
}

absl::Status OfFile(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("safetensors file '", path, "': ", status.message()));
}

absl::Status HasChanged(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("safetensors file '", path, "': ", what,
                   " cannot be read; the file has changed since it was opened"));
}
absl::Status TensorHasChanged(const std::string& path, absl::string_view name) {
  return HasChanged(path, absl::StrCat("tensor '", Shortened(name), "'"));
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

// Adds the region of a tensor [shape...] of elements of `element` bytes. It begins at byte `begin`.
bool AddRegion(StretchReader& reader, int64_t begin, absl::Span<const int64_t> shape,
               absl::Span<const IndexSet> region, int64_t element) {
  if (region.empty()) return reader.Add(begin, element);
  int64_t row = element;
  for (const int64_t size : shape.subspan(1)) row *= size;
  bool whole_rows = true;
  for (size_t d = 1; d < region.size(); ++d) whole_rows &= region[d].size() == shape[d];
  for (const IndexRun& run : region[0].runs()) {
    for (int64_t j = 0; j < run.count; ++j) {
      const int64_t first = run.begin + j * run.stride;
      if (whole_rows) {
        if (!reader.Add(begin + first * row, run.length * row)) return false;
        continue;
      }
      for (int64_t i = first; i < first + run.length; ++i) {
        if (!AddRegion(reader, begin + i * row, shape.subspan(1), region.subspan(1), element)) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

class SafetensorsReader::OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor(descriptor) {
    is_ok_ = fstat(descriptor, &status_) == 0;
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { close(descriptor); }

  bool is_ok() const { return is_ok_; }
  int64_t bytes() const { return status_.st_size; }
  // Whether nobody has written to it since it was opened, as far as its timestamp shows.
  bool IsUnchanged() const {
    struct stat now = {};
    return fstat(descriptor, &now) == 0 && now.st_size == status_.st_size &&
           now.st_mtim.tv_sec == status_.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == status_.st_mtim.tv_nsec;
  }
  bool IsAt(const std::string& path) const {
    struct stat there = {};
    return stat(path.c_str(), &there) == 0 && there.st_dev == status_.st_dev &&
           there.st_ino == status_.st_ino;
  }

  const int descriptor;

 private:
  struct stat status_ = {};
  bool is_ok_ = false;
};

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
  DT_RETURN_IF_ERROR(CheckOrdinary(path));
  // Only this descriptor is used from here on: another file may take the place of this one.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return CannotOpen(path, errno);
  reader.file_ = std::make_shared<const OpenFile>(descriptor);
  if (!reader.file_->is_ok()) return CannotOpen(path, errno);
  const int64_t file_bytes = reader.file_->bytes();
  const absl::StatusOr<std::string> header = ReadHeader(descriptor, file_bytes);
  if (!header.ok()) return OfFile(path, header.status());
  reader.data_begin_ = 8 + static_cast<int64_t>(header->size());
  reader.data_end_ = file_bytes;
  reader.header_crc32c_ = Crc32c(0, header->data(), header->size());
  absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(*header);
  if (!parsed.ok()) return OfFile(path, parsed.status());
  reader.header_ = *std::move(parsed);
  DT_RETURN_IF_ERROR(OfFile(path, reader.CheckOffsets(file_bytes - reader.data_begin_)));
  return reader;
}

absl::Status SafetensorsReader::CheckInPlace() const {
  if (file_->IsAt(path_)) return absl::OkStatus();
  return OfFile(path_,
                absl::UnavailableError("it was replaced since it was opened; open it again"));
}

absl::StatusOr<uint32_t> SafetensorsReader::SampledCrc32c() const {
  constexpr int64_t kPieces = 64, kPieceBytes = 64;
  const int64_t bytes = std::min(kPieceBytes, data_end_ - data_begin_);
  uint32_t crc = header_crc32c_;
  std::array<char, kPieceBytes> piece = {};
  for (int64_t i = 0; i < kPieces; ++i) {
    // The last piece ends where the data end.
    const int64_t begin = data_begin_ + (data_end_ - bytes - data_begin_) / (kPieces - 1) * i;
    const int64_t at = i == kPieces - 1 ? data_end_ - bytes : begin;
    if (!ReadAt(file_->descriptor, at, bytes, piece.data())) return HasChanged(path_, "its data");
    crc = Crc32c(crc, piece.data(), bytes);
  }
  if (!file_->IsUnchanged()) return HasChanged(path_, "its data");
  return crc;
}

absl::StatusOr<SafetensorsInfo> SafetensorsReader::Find(absl::string_view name) const {
  const auto found = tensors().find(name);
  if (found != tensors().end()) return found->second;
  return absl::NotFoundError(absl::StrCat("safetensors file '", path_, "' has no tensor '",
                                          Shortened(name), "'; it has ", Names(tensors())));
}

absl::StatusOr<std::vector<std::byte>> SafetensorsReader::Read(absl::string_view name) const {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, Find(name));
  std::vector<std::byte> bytes;
  const absl::Status made = NoThrow([&] {
    bytes.resize(info.end - info.begin);
    return absl::OkStatus();
  });
  if (!made.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("safetensors file '", path_, "', tensor '", Shortened(name), "': there is no ",
                     "memory for its ", info.end - info.begin, " bytes; ReadRegion reads a part"));
  }
  const bool read = ReadAt(file_->descriptor, data_begin_ + info.begin, bytes.size(), bytes.data());
  if (read && file_->IsUnchanged()) return bytes;
  return TensorHasChanged(path_, name);
}

absl::Status SafetensorsReader::ReadRegion(absl::string_view name,
                                           absl::Span<const IndexSet> region,
                                           std::byte* out) const {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, Find(name));
  DT_CHECK(region.size() == info.shape.size());
  const int64_t elements = NumElements(info.shape);
  if (elements == 0) return absl::OkStatus();
  StretchReader stretches(file_->descriptor, out);
  const int64_t element = (info.end - info.begin) / elements;
  const bool read = AddRegion(stretches, data_begin_ + info.begin, info.shape, region, element) &&
                    stretches.Flush() && file_->IsUnchanged();
  return read ? absl::OkStatus() : TensorHasChanged(path_, name);
}

}  // namespace dtensor
