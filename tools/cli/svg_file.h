// The flags --svg and --picture.
#ifndef DTENSOR_TOOLS_CLI_SVG_FILE_H_
#define DTENSOR_TOOLS_CLI_SVG_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtensor::cli {

// Nothing where `path` is empty. Errors, beginning with the flag: `picture`'s; kInvalidArgument for
// a path that cannot be written; kInternal where writing fails all the same.
absl::Status WriteSvg(const std::string& path, const absl::StatusOr<std::string>& picture);

// Errors: kInvalidArgument where both print.
absl::Status CheckPicture(bool picture, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_SVG_FILE_H_
