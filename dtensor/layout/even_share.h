// ShareOf: splits regions evenly among several ranks.
#ifndef DTENSOR_LAYOUT_EVEN_SHARE_H_
#define DTENSOR_LAYOUT_EVEN_SHARE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns the index-th of `parts` ceil chunks of the regions' elements, counted region after region
// and in row-major order within a region. The result is in that order, and consists of at most 2 *
// dimensions - 1 disjoint regions for each of `regions`. A share is as contiguous as the region
// from which it is cut.
//
//   {0..2} x {0..4}, the first of 2   {0} x {0..4}, {1} x {0..2}      8 of 15 elements
std::vector<Region> ShareOf(absl::Span<const Region> regions, int64_t parts, int64_t index);

// The same, with chunks whose sizes are proportional to `weights`, up to one element.
std::vector<Region> ShareOf(absl::Span<const Region> regions, absl::Span<const int64_t> weights,
                            int64_t index);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_EVEN_SHARE_H_
