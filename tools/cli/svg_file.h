// The flags --svg and --picture.
#ifndef DTENSOR_TOOLS_CLI_SVG_FILE_H_
#define DTENSOR_TOOLS_CLI_SVG_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtensor::cli {

// Does nothing if `path` is empty. Errors, beginning with the flag: `picture`'s; kInvalidArgument
// for a path that cannot be written; kInternal if writing fails after that was checked.
absl::Status WriteSvg(const std::string& path, const absl::StatusOr<std::string>& picture);

// Errors: kInvalidArgument if both flags print.
absl::Status CheckPicture(bool picture, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_SVG_FILE_H_
