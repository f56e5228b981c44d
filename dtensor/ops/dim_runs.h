// For operators that treat a shard's indices of a dimension by runs of neighbours.
#ifndef DTENSOR_OPS_DIM_RUNS_H_
#define DTENSOR_OPS_DIM_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// Indices [first, first + count), which have the positions from `position` on in their shard.
struct DimRun {
  int64_t position = 0, count = 0, first = 0;
};
std::vector<DimRun> RunsOf(const IndexSet& held);

// For OpDef::choose_layouts. If the shards of dimension `dim` of operand 0 have more than a few
// runs, each of which costs a launch, operand 0 comes in contiguous shards, of groups of `unit`.
absl::StatusOr<LayoutChoice> InFewRuns(const LayoutChoiceRequest& request, int dim, int64_t unit);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_DIM_RUNS_H_
