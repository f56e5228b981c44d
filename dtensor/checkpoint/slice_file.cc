#include "dtensor/checkpoint/slice_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"

namespace dtensor {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr int64_t kBlocksAtOnce = 16;  // read at a time

std::atomic<int> num_readers = 0;

int64_t BytesOf(const SafetensorsEntry& entry) {
  return NumElements(entry.shape) * SizeOf(entry.dtype);
}

}  // namespace

absl::StatusOr<SliceFileWriter> SliceFileWriter::Create(FileSystem& files,
                                                        const std::string& folder,
                                                        const std::string& name,
                                                        absl::Span<const SafetensorsEntry> slices) {
  SliceFileWriter writer;
  int64_t blocks = 0;
  for (const SafetensorsEntry& slice : slices) {
    writer.sizes_.push_back(BytesOf(slice));
    writer.file_.slice_bytes += BytesOf(slice);
    blocks += ChecksumBlocks(BytesOf(slice));
  }
  std::vector<SafetensorsEntry> entries(slices.begin(), slices.end());
  entries.push_back({std::string(kChecksumTable), DType::kI32, {blocks}});
  DT_ASSIGN_OR_RETURN(const std::string begin,
                      SafetensorsBegin(entries, {{"format", "dtensor checkpoint slices"}}));
  writer.file_.name = name;
  writer.file_.header_bytes = static_cast<int64_t>(begin.size());
  writer.file_.header_crc32c = Crc32c(0, begin.data(), begin.size());
  DT_ASSIGN_OR_RETURN(writer.output_, files.CreateFile(absl::StrCat(folder, "/", name)));
  DT_RETURN_IF_ERROR(writer.Write(begin.data(), begin.size()));
  return writer;
}

absl::Status SliceFileWriter::Write(const char* bytes, size_t size) {
  file_.bytes += static_cast<int64_t>(size);
  if (buffer_.size() + size < kBufferBytes) {
    buffer_.append(bytes, size);
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(Flush());
  if (size >= kBufferBytes) return output_->Append(bytes, size);
  buffer_.assign(bytes, size);
  return absl::OkStatus();
}

absl::Status SliceFileWriter::Flush() {
  if (buffer_.empty()) return absl::OkStatus();
  absl::Status status = output_->Append(buffer_.data(), buffer_.size());
  buffer_.clear();
  return status;
}

void SliceFileWriter::EndBlock() {
  table_.push_back(crc_);
  crc_ = 0;
}

absl::Status SliceFileWriter::Append(const char* bytes, int64_t size) {
  DT_RETURN_IF_ERROR(Write(bytes, size));
  while (size > 0) {
    if (slice_left_ == 0) slice_left_ = sizes_[slice_++];
    if (block_left_ == 0) block_left_ = std::min(slice_left_, kChecksumBlock);
    const int64_t part = std::min(size, block_left_);
    crc_ = Crc32c(crc_, bytes, part);
    bytes += part;
    size -= part;
    slice_left_ -= part;
    block_left_ -= part;
    if (block_left_ == 0) EndBlock();
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> SliceFileWriter::Finish() {
  const auto* table = reinterpret_cast<const char*>(table_.data());
  const size_t size = table_.size() * sizeof(uint32_t);
  file_.table_crc32c = Crc32c(0, table, size);
  DT_RETURN_IF_ERROR(Write(table, size));
  DT_RETURN_IF_ERROR(Flush());
  DT_RETURN_IF_ERROR(output_->Sync());
  output_.reset();
  return file_;
}

SliceFileReader::SliceFileReader() { ++num_readers; }
SliceFileReader::~SliceFileReader() { --num_readers; }
int SliceFileReader::num_open() { return num_readers; }

absl::StatusOr<std::unique_ptr<SliceFileReader>> SliceFileReader::Open(FileSystem& files,
                                                                       const std::string& folder,
                                                                       const CheckpointFile& file) {
  std::unique_ptr<SliceFileReader> reader(new SliceFileReader);
  reader->file_ = file;
  reader->path_ = absl::StrCat(folder, "/", file.name);
  DT_ASSIGN_OR_RETURN(reader->input_, files.OpenFile(reader->path_));
  if (reader->input_->size() != file.bytes) {
    return absl::DataLossError(absl::StrCat("'", reader->path_, "' has ", reader->input_->size(),
                                            " B, and ", file.bytes, " B were written"));
  }
  DT_RETURN_IF_ERROR(reader->CheckHeader());
  DT_RETURN_IF_ERROR(reader->ReadTable());
  return reader;
}

absl::Status SliceFileReader::CheckHeader() const {
  std::string header(file_.header_bytes, '\0');
  DT_RETURN_IF_ERROR(input_->ReadAt(0, header.data(), header.size()));
  if (Crc32c(0, header.data(), header.size()) == file_.header_crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("'", path_, "': its header is not the one that was written"));
}

absl::Status SliceFileReader::ReadTable() {
  const int64_t begin = file_.header_bytes + file_.slice_bytes;
  table_.resize((file_.bytes - begin) / static_cast<int64_t>(sizeof(uint32_t)));
  const size_t size = table_.size() * sizeof(uint32_t);
  DT_RETURN_IF_ERROR(input_->ReadAt(begin, table_.data(), size));
  if (Crc32c(0, table_.data(), size) == file_.table_crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("'", path_, "': its table of checksums is not the one that was written"));
}

absl::Status SliceFileReader::Load(const CheckpointSlice& slice, int64_t slice_bytes, int64_t first,
                                   int64_t last) {
  const int64_t begin = first * kChecksumBlock;
  const int64_t end = std::min(last * kChecksumBlock, slice_bytes);
  kept_.resize(end - begin);
  kept_begin_ = slice.begin + begin;
  const int64_t in_file = file_.header_bytes + kept_begin_;
  absl::Status status = input_->ReadAt(in_file, kept_.data(), kept_.size());
  for (int64_t block = first; status.ok() && block < last; ++block) {
    const int64_t at = (block - first) * kChecksumBlock;
    const int64_t size = std::min(kChecksumBlock, end - begin - at);
    const uint32_t expected = table_[slice.first_block + block];
    const uint32_t found = Crc32c(0, kept_.data() + at, size);
    if (found == expected) continue;
    status = absl::DataLossError(absl::StrFormat(
        "'%s': bytes %d to %d are not what was written: their CRC-32C is %08x, and was %08x", path_,
        in_file + at, in_file + at + size - 1, found, expected));
  }
  if (!status.ok()) kept_.clear();
  return status;
}

absl::Status SliceFileReader::Read(const CheckpointSlice& slice, int64_t slice_bytes, int64_t begin,
                                   int64_t size, char* bytes) {
  while (size > 0) {
    const int64_t at = slice.begin + begin - kept_begin_;  // within the kept bytes
    const auto kept = static_cast<int64_t>(kept_.size());
    if (at < 0 || at >= kept) {
      const int64_t first = begin / kChecksumBlock;
      const int64_t last = std::min(ChecksumBlocks(begin + size), first + kBlocksAtOnce);
      DT_RETURN_IF_ERROR(Load(slice, slice_bytes, first, last));
      continue;
    }
    // The kept bytes end at the end of a slice, or before it; they never extend into the next one.
    const int64_t part = std::min(size, kept - at);
    std::memcpy(bytes, kept_.data() + at, part);
    bytes += part;
    begin += part;
    size -= part;
  }
  return absl::OkStatus();
}

}  // namespace dtensor
