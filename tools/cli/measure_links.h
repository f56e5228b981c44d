// Measures this machine for the link table (dtensor/redistribution/cost_model.h).
#ifndef DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
#define DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/cost_model.h"

namespace dtensor::cli {

// Ranks are threads, and all do the same at once: fetch one element of a neighbour's, fetch a large
// tensor of its, copy one of their own, add up everybody's; multiply matrices of each type, attend,
// add large tensors, and dispatch small operators. The table has one link for every axis, since
// threads share one memory. Errors: kInvalidArgument for fewer ranks than 2 or more than 64; a
// rank's failure (kInternal).
absl::StatusOr<CostModel> MeasureLinks(int64_t ranks);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
