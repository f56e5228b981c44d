// One file of slices: a safetensors file whose tensors are slices, with the checksums of their
// blocks as the last one (index.h). Written once, from its begin to its end; read in parts, each of
// which is checked before it is handed out.
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
  // A new file in `folder`, for these slices, whose data are not looked at. Errors: of
  // SafetensorsBegin and FileSystem.
  static absl::StatusOr<SliceFileWriter> Create(FileSystem& files, const std::string& folder,
                                                const std::string& name,
                                                absl::Span<const SafetensorsEntry> slices);
  // The next bytes: the slices' one after the other. Requires: not more than they have. Errors: of
  // FileSystem.
  absl::Status Append(const char* bytes, int64_t size);
  // Writes the checksums, and blocks until all is on the disk. Requires: all bytes are appended.
  // The last call. Errors: of FileSystem.
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
  size_t slice_ = 0;            // that comes next
  int64_t slice_left_ = 0, block_left_ = 0;
  uint32_t crc_ = 0;  // of the block so far
  std::vector<uint32_t> table_;
};

class SliceFileReader {
 public:
  // Checks the file's length, its header and its table. Errors, which name the file: kNotFound,
  // kUnavailable; kDataLoss where it is not what was written.
  static absl::StatusOr<std::unique_ptr<SliceFileReader>> Open(FileSystem& files,
                                                               const std::string& folder,
                                                               const CheckpointFile& file);

  ~SliceFileReader();
  // How many this process has, of all its ranks and threads: each has a file open.
  static int num_open();

  // Bytes [begin, begin + size) of a slice of `slice_bytes`. Reads the blocks that they lie in,
  // and keeps the last ones. Errors, which name the file: kUnavailable; kDataLoss where a block is
  // not what was written.
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
  // Checked bytes [begin, begin + size) of the file's slices.
  std::vector<char> kept_;
  int64_t kept_begin_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SLICE_FILE_H_
