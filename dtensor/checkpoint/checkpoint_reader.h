// CheckpointReader: reads a checkpoint in one process: its index, and any part of any tensor.
//
//   DT_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open("run"));
//   std::vector<float> rows(2 * 64);  // two rows of a [128, 64] tensor
//   DT_RETURN_IF_ERROR(reader.Read("embedding.weight", region, rows.data()));
//
// To read what the ranks of a world hold of their tensors, use load.h.
#ifndef DTENSOR_CHECKPOINT_CHECKPOINT_READER_H_
#define DTENSOR_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"

namespace DTENSOR_EXPORT dtensor {

class SliceFileReader;  // slice_file.h

// Not thread-safe. `files` must outlive it.
class CheckpointReader {
 public:
  // Opens the checkpoint in `path`; if this is the folder of a run, its latest one
  // (FindCheckpoint). Reads the index. Errors: kNotFound, saying what is there instead;
  // kUnavailable; kDataLoss, naming the file, if the index is not what was written.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path,
                                               FileSystem& files = FileSystem::OfThisMachine());
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::string& path() const { return path_; }  // of the checkpoint
  const CheckpointIndex& index() const { return index_; }
  uint32_t index_crc32c() const { return index_crc32c_; }  // tells checkpoints apart

  // Reads the elements of `region`, row-major, in the type in which the tensor was saved. Of each
  // file it reads only the blocks that contain them, and checks these. Errors, which name file and
  // tensor: kNotFound for a tensor that does not exist, and for a file that is gone;
  // kInvalidArgument for a region that is not within the shape; kUnavailable; kDataLoss if bytes
  // are not what was written.
  absl::Status Read(absl::string_view name, const Region& region, void* elements);

  // Reads and checks every byte. Errors: as Read.
  absl::Status Verify();

  int64_t bytes_read() const { return bytes_read_; }  // asked for so far

 private:
  CheckpointReader() = default;
  absl::Status ReadSlice(const CheckpointTensor& tensor, const CheckpointSlice& slice,
                         const Region& region, char* elements, int64_t& found);
  absl::StatusOr<SliceFileReader*> FileOf(size_t file);

  FileSystem* files_ = nullptr;
  std::string path_;
  CheckpointIndex index_;
  uint32_t index_crc32c_ = 0;
  int64_t bytes_read_ = 0;
  // The most recently used files, latest first. There is a bound, because a process can open only
  // so many files.
  std::list<std::pair<size_t, std::unique_ptr<SliceFileReader>>> open_;
};

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_CHECKPOINT_READER_H_
