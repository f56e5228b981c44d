// Measures this machine for the link table (dtensor/redistribution/cost_model.h).
#ifndef DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
#define DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtensor/redistribution/cost_model.h"

namespace dtensor::cli {

// Ranks are threads, or, `as_launched`, the processes that a launcher has started (RunWorld), and
// all do the same at once: fetch one element of a neighbour's, fetch a large tensor of its, copy
// one of their own, add up everybody's; multiply matrices of each type, attend, add large tensors,
// and dispatch small operators. The table, rank 0's, has one link for every axis: threads share one
// memory, and processes are taken to be on one host. Errors: kInvalidArgument for fewer
// ranks than 2 or more than 64; a rank's failure (kInternal).
absl::StatusOr<CostModel> MeasureLinks(int64_t ranks, bool as_launched = false);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_MEASURE_LINKS_H_
