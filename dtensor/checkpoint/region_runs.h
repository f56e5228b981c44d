// The intersection of two regions of one tensor, as runs of elements that are contiguous in both:
// this maps a slice in a file to what a rank holds.
#ifndef DTENSOR_CHECKPOINT_REGION_RUNS_H_
#define DTENSOR_CHECKPOINT_REGION_RUNS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A run of `length` elements. It starts at position `src` of the one region's elements in row-major
// order, and at position `dst` of the other's.
struct RegionRun {
  int64_t src = 0, dst = 0, length = 0;
};

// Calls `visit` with each run, ascending in src. Stops at the first error, and returns it. Each
// common element is in exactly one run. Requires: both regions have the same number of dimensions.
absl::Status VisitCommonRuns(const Region& src, const Region& dst,
                             absl::FunctionRef<absl::Status(const RegionRun&)> visit);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_REGION_RUNS_H_
