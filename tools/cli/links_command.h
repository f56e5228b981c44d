// dtensor links: measures this machine, and prints the link table
// (dtensor/redistribution/cost_model.h) that prices plans for it.
#ifndef DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_
#define DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/cost_model.h"
#include "dtensor/tools/cli/request.h"

namespace dtensor::cli {

// Ranks are threads, and all do the same at once: fetch one element of a neighbour's, fetch a large
// tensor of its, copy one of their own, add up everybody's. The table has one link for every axis,
// since threads share one memory. Errors: kInvalidArgument for too few or too many ranks; a rank's
// failure (kInternal).
absl::StatusOr<CostModel> MeasureLinks(int64_t ranks);

// Errors: of MeasureLinks.
absl::StatusOr<Outcome> RunLinks(int64_t ranks, bool json);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_LINKS_COMMAND_H_
