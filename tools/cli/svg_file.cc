#include "dtensor/tools/cli/svg_file.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/tools/cli/request.h"
#include "dtensor/tools/program/output.h"

namespace dtensor::cli {

absl::Status CheckPicture(bool picture, bool json) {
  if (!picture || !json) return absl::OkStatus();
  return InvalidArgument(
      {"--picture and --json both print; give one of them (--svg=FILE goes with "
       "either)"});
}

absl::Status WriteSvg(const std::string& path, const absl::StatusOr<std::string>& picture) {
  if (path.empty()) return absl::OkStatus();
  DT_RETURN_IF_ERROR(CheckOutputFile("--svg", path));
  DT_RETURN_IF_ERROR(AboutFlag("--svg", picture.status()));
  const absl::Status written = WriteFileAtomically(path, *picture);
  return AboutFlag("--svg", written.ok() ? written : absl::InternalError(written.message()));
}

}  // namespace dtensor::cli
