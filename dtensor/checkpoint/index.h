// CheckpointIndex: what a checkpoint holds and where: the file index.json, which is written last,
// and without which a folder is no checkpoint. docs/checkpoints.md has the format.
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

// Of a slice's bytes each block has a checksum, so that a rank that reads a part of it reads and
// checks no more than the blocks which that part lies in.
inline constexpr int64_t kChecksumBlock = 64 << 10;
inline int64_t ChecksumBlocks(int64_t bytes) {
  return (bytes + kChecksumBlock - 1) / kChecksumBlock;
}
// Of the tensor in each file that has the blocks' checksums, CRC-32C as 32-bit words: those of the
// slices one after the other, in the order in which they lie.
inline constexpr absl::string_view kChecksumTable = "__checksums__";

// Names of optimizers' states begin with it: "optimizer/exp_avg/layers.0.weight".
inline constexpr absl::string_view kOptimizerNames = "optimizer/";

// One file of slices.
struct CheckpointFile {
  std::string name;            // in the checkpoint's folder
  int64_t bytes = 0;           // of the file
  int64_t header_bytes = 0;    // before the first slice
  uint32_t header_crc32c = 0;  // of these
  int64_t slice_bytes = 0;     // of all slices; behind them stands the table
  uint32_t table_crc32c = 0;   // of the table's bytes
};

struct CheckpointSlice {
  size_t file = 0;          // which of the files
  int64_t begin = 0;        // its first byte, behind the header
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
  int ranks = 1;                               // that wrote it
  std::map<std::string, std::string> entries;  // texts, by name
  // Other names of tensors: what is tied is written once.
  std::map<std::string, std::string, std::less<>> aliases;
  std::vector<CheckpointFile> files;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;

  // The tensor of that name, or of that other name; null if there is none.
  const CheckpointTensor* Find(absl::string_view name) const;
  int64_t bytes() const;  // of all tensors

  // With its own length and checksum in the first line. Requires: names and entries that are UTF-8.
  std::string ToText() const;
  // Errors: kInvalidArgument, saying what is wrong, for whatever is no such text: cut short,
  // changed by a bit, of a later version of the format, with slices that lie outside of their file
  // or their tensor, or that are more or fewer elements than it has. A bad index never makes a
  // reader read outside of what it has.
  static absl::StatusOr<CheckpointIndex> Parse(absl::string_view text);
};

// Errors: kInvalidArgument, naming it, for a text that is no UTF-8.
absl::Status CheckIndexText(absl::string_view what, const std::string& text);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_INDEX_H_
