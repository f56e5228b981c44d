// dtensor links: measures this machine, and prints the link table
// (dtensor/redistribution/cost_model.h) that prices plans for it.
#ifndef DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_
#define DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Without `ranks`: as many as the launcher started processes, or two threads. Errors: those of
// MeasureLinks (measure_links.h); kInvalidArgument if `ranks` differs from the number of processes.
absl::StatusOr<Outcome> RunLinks(std::optional<int64_t> ranks, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_
