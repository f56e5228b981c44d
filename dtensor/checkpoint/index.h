// CheckpointIndex: what a checkpoint contains, and where it is stored. It is the file index.json,
// which is written last; a folder without it is not a checkpoint. docs/checkpoints.md describes the
// format.
#ifndef DTENSOR_CHECKPOINT_INDEX_H_
#define DTENSOR_CHECKPOINT_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The bytes of a slice are divided into blocks with one checksum each, so that a rank that reads
// part of a slice needs to read and check only the blocks in which the part lies.
inline constexpr int64_t kChecksumBlock = 64 << 10;
inline int64_t ChecksumBlocks(int64_t bytes) {
  return (bytes + kChecksumBlock - 1) / kChecksumBlock;
}
// The name of the tensor in each file that holds the blocks' checksums: CRC-32C as 32-bit words,
// slice after slice, in the order of the file.
inline constexpr absl::string_view kChecksumTable = "__checksums__";

// Names of optimizers' states begin with it: "optimizer/exp_avg/layers.0.weight".
inline constexpr absl::string_view kOptimizerNames = "optimizer/";

// One file of slices.
struct CheckpointFile {
  std::string name;            // in the checkpoint's folder
  int64_t bytes = 0;           // of the file
  int64_t header_bytes = 0;    // before the first slice
  uint32_t header_crc32c = 0;  // of the header
  int64_t slice_bytes = 0;     // of all slices; the table follows them
  uint32_t table_crc32c = 0;   // of the table's bytes
};

struct CheckpointSlice {
  size_t file = 0;          // which of the files
  int64_t begin = 0;        // its first byte, counted from the end of the header
  int64_t first_block = 0;  // its first checksum in the table
  Region region;            // global indices; the elements lie in row-major order
};

struct CheckpointTensor {
  DType dtype = DType::kF32;
  Dims shape;
  std::vector<CheckpointSlice> slices;  // each element is in one of them
};

struct CheckpointIndex {
  int64_t step = 0;
  int ranks = 1;                               // the number of ranks that wrote it
  std::map<std::string, std::string> entries;  // texts, by name
  // Other names of tensors: tied tensors are written once.
  std::map<std::string, std::string, std::less<>> aliases;
  std::vector<CheckpointFile> files;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;

  // The tensor with that name, or with that alias; null if there is none.
  const CheckpointTensor* Find(absl::string_view name) const;
  int64_t bytes() const;  // of all tensors

  // The first line contains the text's own length and checksum. Requires: names and entries in
  // UTF-8.
  std::string ToText() const;
  // Errors: kInvalidArgument, saying what is wrong, for a text that is not an index: one that is
  // cut short, that has a flipped bit, or is of a later version of the format; one with slices that
  // lie outside of their file or their tensor, or whose elements are more or fewer than the tensor
  // has. A reader never reads outside of what it has because of a bad index.
  static absl::StatusOr<CheckpointIndex> Parse(absl::string_view text);
};

// Errors: kInvalidArgument, naming `what`, for a text that is not UTF-8.
absl::Status CheckIndexText(absl::string_view what, const std::string& text);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_INDEX_H_
