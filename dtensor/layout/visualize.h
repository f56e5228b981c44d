// Draws which rank holds which part of a tensor:
//
//   VisualizeLayout(layout, {4, 8})      0 0 1 1 1 1 0 0
//   on ["dp"=2, "tp"=2],                 0 0 1 1 1 1 0 0
//   [dp] [tp:zigzag]                     2 2 3 3 3 3 2 2
//                                        2 2 3 3 3 3 2 2
//                                        0 rank 0 ...
//
// dtensor/redistribution/visualize.h draws redistributions, parallel_plans/explain/visualize.h
// plans on a model.
#ifndef DTENSOR_LAYOUT_VISUALIZE_H_
#define DTENSOR_LAYOUT_VISUALIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/picture.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Ranks that hold the same elements (at least one element): replicas, or a partial tensor's terms.
struct Holders {
  std::vector<int> ranks;  // in the order of the mesh
  Region region;
};
// Returns all groups of holders, in the order of their first ranks in the mesh. Their regions are
// disjoint and together are the whole tensor. Both functions require a shape that a tensor may have
// (dims.h), with the layout's number of dimensions, and regions that CheckRegions accepts.
std::vector<Holders> HoldersOf(const Layout& layout, absl::Span<const int64_t> shape);
// The same as parts of a picture, named "ranks 0, 2"; of many ranks, the first ones and their
// number.
std::vector<PicturePart> HolderParts(const Layout& layout, absl::Span<const int64_t> shape);

// Errors of both: kInvalidArgument for a shape with another number of dimensions than the layout,
// or that no tensor may have (dims.h), and what picture.h and CheckRegions refuse.
absl::StatusOr<std::string> VisualizeLayout(const Layout& layout, absl::Span<const int64_t> shape,
                                            bool colour = false);
// An SVG document.
absl::StatusOr<std::string> VisualizeLayoutSvg(const Layout& layout,
                                               absl::Span<const int64_t> shape);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_VISUALIZE_H_
