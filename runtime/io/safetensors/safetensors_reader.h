// Reads safetensors files: 8 bytes with the header's length (little-endian), the header in JSON,
// then raw little-endian tensors. Format: https://github.com/huggingface/safetensors.
//
//   DT_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::Open("x.safetensors"));
//   DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read("q"));
//
// Files are not trusted: whatever a file contains, Open returns a reader or says what is wrong.
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_READER_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/io/safetensors/safetensors_header.h"

namespace DTENSOR_EXPORT dtensor {

class SafetensorsReader {
 public:
  // Reads the header. Errors, which name the file: kNotFound if there is no such file to read;
  // kInvalidArgument, naming the tensor and what is wrong with it, for a file that
  // - is no ordinary file, is shorter than its header, or has a header of more than 100 MB: the
  //   format's limit, which allows a million tensors;
  // - has a header that is no JSON object of tensors, with each name once;
  // - has metadata that are not texts;
  // - has a tensor of an unknown type, with negative sizes, with more than 2^56 elements or 64
  //   dimensions, or with another number of bytes than its shape and type need;
  // - has tensors that do not follow each other without gaps or overlaps, to the end of the file.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsInfo, std::less<>>& tensors() const {
    return header_.tensors;
  }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // Checks that the path still leads to the file that was opened. Errors: kUnavailable, naming it.
  absl::Status CheckInPlace() const;

  // The CRC-32C of the header and of 64 pieces of the data, from its beginning to its end. It
  // almost certainly differs for other weights, and reads only a few KB. Errors: kUnavailable if
  // the file has changed.
  absl::StatusOr<uint32_t> SampledCrc32c() const;

  // Errors: kNotFound, naming at most ten of the existing tensors.
  absl::StatusOr<SafetensorsInfo> Find(absl::string_view name) const;
  // The tensor's bytes. Errors: those of Find; kUnavailable if the file has changed;
  // kResourceExhausted, since the file determines how much memory is needed.
  absl::StatusOr<std::vector<std::byte>> Read(absl::string_view name) const;
  // Reads those elements of the tensor whose indices are in `region`, an index set for each
  // dimension, row-major, into `out`, which must have room for them. Reads nothing else: one piece
  // of the file for each stretch without gaps. It reads the file that was opened, even if another
  // one has its name by now. Requires: `region` is within the shape that Find() returns. Errors: as
  // Read.
  absl::Status ReadRegion(absl::string_view name, absl::Span<const IndexSet> region,
                          std::byte* out) const;

 private:
  class OpenFile;
  SafetensorsReader() = default;
  absl::Status CheckOffsets(int64_t data_bytes) const;

  std::string path_;
  std::shared_ptr<const OpenFile> file_;
  int64_t data_begin_ = 0, data_end_ = 0;  // in the file
  uint32_t header_crc32c_ = 0;
  SafetensorsHeader header_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_READER_H_
