// Who holds what, drawn: a 1-D or 2-D tensor as a grid of letters, of colours, or as SVG.
#ifndef DTENSOR_TOOLS_CLI_PICTURE_H_
#define DTENSOR_TOOLS_CLI_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"

namespace dtensor::cli {

// Ranks that hold the same elements, at least one: replicas, or a partial tensor's terms.
struct Holders {
  std::vector<int> ranks;  // in the order of the mesh
  Region region;
};
// Disjoint; together they hold the tensor. In the order of their first ranks in the mesh.
std::vector<Holders> HoldersOf(const Layout& layout, absl::Span<const int64_t> shape);
// Ranks in one line: "0, 2, 4"; of many the first ones and their number.
std::string RanksToString(absl::Span<const int> ranks);

// Both draw a vector as one row. Errors of both: kInvalidArgument for other than 1-D and 2-D
// tensors, and for more than they can show.

// One letter for each element, and what the letters mean. `colour`: on coloured ground, by the
// escape sequences of terminals. Up to 64 x 64 elements and 62 sets of holders.
absl::StatusOr<std::string> DrawText(const Layout& layout, absl::Span<const int64_t> shape,
                                     bool colour);
// An SVG document: a rectangle for each box that a rank holds, titled with its holders. Up to
// 100,000 rectangles.
absl::StatusOr<std::string> DrawSvg(const Layout& layout, absl::Span<const int64_t> shape);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_PICTURE_H_
