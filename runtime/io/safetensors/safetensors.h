// Writing safetensors files: a JSON header and raw little-endian tensors, as Hugging Face's library
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

// Row-major; `data`, on the host, outlives the call that writes it.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  const void* data = nullptr;
};

// Writes a file one tensor after the other, so that no more than a piece of one has to be in
// memory.
//
//   DT_ASSIGN_OR_RETURN(SafetensorsWriter file, SafetensorsWriter::Create(path, entries, {}));
//   for (...) DT_RETURN_IF_ERROR(file.Append(bytes, size));  // of all entries, in their order
//   DT_RETURN_IF_ERROR(file.Commit());
//
// The place has what it had until Commit succeeds (runtime/io/atomic_file.h).
class SafetensorsWriter {
 public:
  // `entries` say names, types and shapes; their data are not looked at. Errors: as
  // WriteSafetensors, but for missing data.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, absl::Span<const SafetensorsEntry> entries,
      const std::map<std::string, std::string>& metadata);

  // The next bytes, of one tensor or several. Errors: kUnavailable, with path and reason.
  absl::Status Append(const void* bytes, int64_t size);
  // Blocks until the file is on the disk. The last call. Errors: kFailedPrecondition where other
  // bytes were appended than the entries have; kUnavailable.
  absl::Status Commit();

 private:
  SafetensorsWriter(AtomicFile file, int64_t bytes) : file_(std::move(file)), missing_(bytes) {}
  AtomicFile file_;
  int64_t missing_;  // bytes
};

// Replaces the file as a whole, or leaves what was there (runtime/io/atomic_file.h). Blocks until
// it is on the disk.
// Errors: kInvalidArgument, naming the tensor, for whatever SafetensorsReader refuses: a name that
// occurs twice, is no UTF-8 or "__metadata__", metadata that are no UTF-8, a shape with negative
// sizes, with more than 2^56 elements or 64 dimensions, data of 2^63 bytes, a header of more than
// 100 MB; and for a tensor with elements and no data. kUnavailable, with path and reason, when it
// cannot be written.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsEntry> entries,
                              const std::map<std::string, std::string>& metadata);

// What such a file begins with: the header's length and the header, padded so that the data behind
// it, tensor after tensor in the order of the entries, begins at a multiple of 8. For who writes
// the data piece by piece; `data` is not looked at. Errors: kInvalidArgument, as above.
absl::StatusOr<std::string> SafetensorsBegin(absl::Span<const SafetensorsEntry> entries,
                                             const std::map<std::string, std::string>& metadata);

// `text` in JSON, with its quotation marks. None for what is no UTF-8, which does not come back as
// it was.
std::optional<std::string> JsonQuoted(const std::string& text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_SAFETENSORS_SAFETENSORS_H_
