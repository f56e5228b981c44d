// Measures this machine, to make a link table (dtensor/redistribution/cost_model.h).
#ifndef DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
#define DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/cost_model.h"

namespace dtensor::cli {

// Ranks are threads or, if `as_launched`, the processes that a launcher has started (RunWorld). All
// do the same at the same time: fetch one element and then a large tensor from a neighbour, copy
// one of their own, add up everybody's; multiply matrices of each type, compute attention, add
// large tensors, and dispatch small operators. The table is rank 0's and has one link for every
// axis: threads share one memory, and processes are assumed to be on one host. Errors:
// kInvalidArgument for fewer ranks than 2 or more than 64; a rank's failure (kInternal).
absl::StatusOr<CostModel> MeasureLinks(int64_t ranks, bool as_launched = false);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
