// What two regions of one tensor have in common, as runs of elements that lie side by side in both:
// how a slice in a file becomes part of what a rank holds.
#ifndef DTENSOR_CHECKPOINT_REGION_RUNS_H_
#define DTENSOR_CHECKPOINT_REGION_RUNS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// `length` elements, from position `src` of the one region's elements in row-major order, and from
// position `dst` of the other's.
struct RegionRun {
  int64_t src = 0, dst = 0, length = 0;
};

// Calls `visit` with each run, ascending in src, until it returns an error, which is returned.
// Each common element is in one run. Requires: as many dimensions.
absl::Status VisitCommonRuns(const Region& src, const Region& dst,
                             absl::FunctionRef<absl::Status(const RegionRun&)> visit);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_REGION_RUNS_H_
