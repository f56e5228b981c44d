// An even share of a region: what one of several ranks takes of elements that all of them could.
#ifndef DTENSOR_LAYOUT_EVEN_SHARE_H_
#define DTENSOR_LAYOUT_EVEN_SHARE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The index-th of `parts` ceil chunks of some regions' elements, one region after the other, each
// in row-major order. Of each it is at most 2 * dimensions - 1 disjoint regions, in that order.
// Shares are as even as elements allow, and each is as contiguous as the region.
//
//   {0..2} x {0..4}, the first of 2   {0} x {0..4}, {1} x {0..2}      8 of 15 elements
std::vector<Region> ShareOf(absl::Span<const Region> regions, int64_t parts, int64_t index);

// The same, where the chunks are as `weights` are to each other, within an element.
std::vector<Region> ShareOf(absl::Span<const Region> regions, absl::Span<const int64_t> weights,
                            int64_t index);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_EVEN_SHARE_H_
