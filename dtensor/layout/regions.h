// Regions: which global indices a rank holds. This defines the meaning of a layout.
//
// A rank holds a product of index sets, one per tensor dimension; its local tensor holds those
// elements in ascending global order, dimension by dimension. Every fast path is tested against
// this. O(ndim * runs), without communication. For a layout that placements can express, a
// dimension has one or two runs, or one per round of a cyclic order. For other layouts the number
// of runs may grow with the tensor; CheckRegions refuses those that have too many.
#ifndef DTENSOR_LAYOUT_REGIONS_H_
#define DTENSOR_LAYOUT_REGIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"

namespace DTENSOR_EXPORT dtensor {

using Region = absl::InlinedVector<IndexSet, 4>;  // one index set per tensor dimension

// What the rank at `coordinate` (one entry per mesh axis) holds of dimension `d` of size n.
IndexSet DimRegion(const Layout& layout, int d, int64_t n, absl::Span<const int> coordinate);
// The same for every dimension. Partial and replicated axes do not matter.
Region Regions(const Layout& layout, absl::Span<const int64_t> shape,
               absl::Span<const int> coordinate);

// The most runs that a region may have in each dimension.
inline constexpr int64_t kMaxRegionRuns = int64_t{1} << 20;
// Errors: kInvalidArgument, naming the dimension, if a rank's region could have more runs.
// Requires: as Regions.
absl::Status CheckRegions(const Layout& layout, absl::Span<const int64_t> shape);

// The indices of dimension d whose holder has `coordinate[a]` on each axis a in `axes`, whatever
// its coordinate on the other axes. With every axis listed this is DimRegion.
IndexSet DimRegionOverAxes(const Layout& layout, int d, int64_t n, absl::Span<const int> coordinate,
                           absl::Span<const int> axes);

int64_t NumElements(const Region& region);
int64_t NumElements(absl::Span<const Region> disjoint);
// The intersection of two regions of one tensor, as disjoint regions. It is one region, or several
// if strided runs interleave (IndexSet::IntersectInParts).
std::vector<Region> IntersectRegions(const Region& a, const Region& b);
std::string ToString(const Region& region);  // "{0..3} x {8..15}"; a scalar is "scalar"

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_REGIONS_H_
