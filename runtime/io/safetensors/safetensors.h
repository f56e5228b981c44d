// Writes safetensors files: a JSON header and raw little-endian tensors, as Hugging Face's library
// reads them.
#ifndef DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_H_
#define DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/atomic_file.h"

namespace DTENSOR_EXPORT dtensor {

// Row-major; `data` is host memory and must outlive the call that writes it.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  const void* data = nullptr;
};

// Writes a file one tensor after the other, so that only a piece of one tensor has to be in memory.
//
//   DT_ASSIGN_OR_RETURN(SafetensorsWriter file, SafetensorsWriter::Create(path, entries, {}));
//   for (...) DT_RETURN_IF_ERROR(file.Append(bytes, size));  // of all entries, in their order
//   DT_RETURN_IF_ERROR(file.Commit());
//
// Until Commit succeeds, the path has its old contents (runtime/io/atomic_file.h).
class SafetensorsWriter {
 public:
  // `entries` give names, types and shapes; their data are not used. Errors: as WriteSafetensors,
  // except for missing data.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, absl::Span<const SafetensorsEntry> entries,
      const std::map<std::string, std::string>& metadata);

  // Appends the next bytes, of one tensor or several. Errors: kUnavailable, with path and reason.
  absl::Status Append(const void* bytes, int64_t size);
  // Blocks until the file is on the disk. Must be the last call. Errors: kFailedPrecondition if the
  // number of bytes appended differs from the entries'; kUnavailable.
  absl::Status Commit();

 private:
  SafetensorsWriter(AtomicFile file, int64_t bytes) : file_(std::move(file)), missing_(bytes) {}
  AtomicFile file_;
  int64_t missing_;  // bytes
};

// Replaces the file as a whole, or leaves the old one (runtime/io/atomic_file.h). Blocks until it
// is on the disk. Errors: kInvalidArgument, naming the tensor, for whatever SafetensorsReader
// refuses: a name that occurs twice, is not UTF-8 or is "__metadata__", metadata that are not
// UTF-8, a shape with negative sizes, with more than 2^56 elements or 64 dimensions, data of 2^63
// bytes, a header of more than 100 MB; and for a tensor that has elements but no data.
// kUnavailable, with path and reason, if it cannot be written.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsEntry> entries,
                              const std::map<std::string, std::string>& metadata);

// Returns the beginning of such a file: the header's length and the header, padded so that the data
// behind it starts at a multiple of 8, tensor after tensor in the order of the entries. For callers
// that write the data piece by piece; `data` is not used. Errors: kInvalidArgument, as above.
absl::StatusOr<std::string> SafetensorsBegin(absl::Span<const SafetensorsEntry> entries,
                                             const std::map<std::string, std::string>& metadata);

// `text` as a JSON string, with quotation marks. None if it is not UTF-8, since it could not be
// read back unchanged.
std::optional<std::string> JsonQuoted(const std::string& text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_H_
