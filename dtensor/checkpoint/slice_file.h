// One file of slices: a safetensors file whose tensors are slices, followed by a tensor with the
// checksums of their blocks (index.h). It is written once, from beginning to end, and read in
// parts; each part is checked before it is returned.
#ifndef DTENSOR_CHECKPOINT_SLICE_FILE_H_
#define DTENSOR_CHECKPOINT_SLICE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"

namespace dtensor {

class SliceFileWriter {
 public:
  // Creates a file in `folder` for these slices; their data is not accessed. Errors: those of
  // SafetensorsBegin and FileSystem.
  static absl::StatusOr<SliceFileWriter> Create(FileSystem& files, const std::string& folder,
                                                const std::string& name,
                                                absl::Span<const SafetensorsEntry> slices);
  // Appends bytes of the slices, one slice after the other. Requires: not more than they have.
  // Errors: those of FileSystem.
  absl::Status Append(const char* bytes, int64_t size);
  // Writes the checksums, and blocks until all is on disk. Must be the last call. Requires: all
  // bytes were appended. Errors: those of FileSystem.
  absl::StatusOr<CheckpointFile> Finish();

 private:
  SliceFileWriter() = default;
  absl::Status Write(const char* bytes, size_t size);
  absl::Status Flush();
  void EndBlock();

  CheckpointFile file_;
  std::unique_ptr<OutputFile> output_;
  std::string buffer_;          // many slices are small
  std::vector<int64_t> sizes_;  // of the slices
  size_t slice_ = 0;            // the index of the next one
  int64_t slice_left_ = 0, block_left_ = 0;
  uint32_t crc_ = 0;  // of the block so far
  std::vector<uint32_t> table_;
};

class SliceFileReader {
 public:
  // Checks the file's length, header and table. Errors, which name the file: kNotFound,
  // kUnavailable; kDataLoss if it is not what was written.
  static absl::StatusOr<std::unique_ptr<SliceFileReader>> Open(FileSystem& files,
                                                               const std::string& folder,
                                                               const CheckpointFile& file);

  ~SliceFileReader();
  // The number of readers in this process, of all ranks and threads. Each has a file open.
  static int num_open();

  // Reads bytes [begin, begin + size) of a slice of `slice_bytes` bytes. Reads the blocks that
  // contain them, and keeps the last ones. Errors, which name the file: kUnavailable; kDataLoss if
  // a block is not what was written.
  absl::Status Read(const CheckpointSlice& slice, int64_t slice_bytes, int64_t begin, int64_t size,
                    char* bytes);

 private:
  SliceFileReader();
  absl::Status CheckHeader() const;
  absl::Status ReadTable();
  absl::Status Load(const CheckpointSlice& slice, int64_t slice_bytes, int64_t first, int64_t last);

  CheckpointFile file_;
  std::string path_;
  std::unique_ptr<InputFile> input_;
  std::vector<uint32_t> table_;
  // The bytes [begin, begin + size) of the file's slices that were read last, already checked.
  std::vector<char> kept_;
  int64_t kept_begin_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SLICE_FILE_H_
