// Reads whole files that users name.
#ifndef DTENSOR_RUNTIME_IO_READ_FILE_H_
#define DTENSOR_RUNTIME_IO_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns all bytes of an ordinary file, or of a pipe, which is read to its end. Errors, which name
// the file: kNotFound, with the reason, if it cannot be opened or read; kInvalidArgument for a
// folder, for a device, which may have no end, and for more than `most` bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_READ_FILE_H_
