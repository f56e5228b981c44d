// dtensor regions: what each rank holds of a tensor, as a list and as a picture.
#ifndef DTENSOR_TOOLS_CLI_REGIONS_COMMAND_H_
#define DTENSOR_TOOLS_CLI_REGIONS_COMMAND_H_

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// `colour`: of the picture. Writes flags.svg, if it is given. Errors: those of ParseLaid and of
// visualize.h; kInvalidArgument for a file that cannot be written, and for a picture and JSON at
// once; kInternal if writing the file fails after that was checked.
absl::StatusOr<Outcome> RunRegions(const RegionsFlags& flags, bool json, bool colour);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_REGIONS_COMMAND_H_
