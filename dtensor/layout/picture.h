// Pictures of tensors whose elements belong to parts, as letters in a terminal and as SVG: what
// visualize.h of this room and of others draw by.
//
// A vector is one row, a scalar one element; of more than two dimensions the last two are drawn,
// once for each index of the others: a slice. Shapes are such as a tensor may have (dims.h), and
// parts lie within them.
#ifndef DTENSOR_LAYOUT_PICTURE_H_
#define DTENSOR_LAYOUT_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct PicturePart {
  std::string name;  // "ranks 0, 2"
  std::string mark;  // short, for a place in SVG: "0"; empty: none
  Region region;     // of the tensor; parts are disjoint
};

// One letter for each element, '.' for those of no part, under each slice's index, and then what
// the letters mean. `colour`: on coloured ground, by the escape sequences of terminals. Errors:
// kInvalidArgument for slices of more than 64 x 64 elements, more than 64 slices, or more than 62
// parts.
absl::StatusOr<std::string> PictureText(absl::Span<const int64_t> shape,
                                        absl::Span<const PicturePart> parts, bool colour);

// A group of SVG elements, without a document around it.
struct SvgPanel {
  std::string svg;
  double width = 0, height = 0;
};
// A rectangle for each box of each part, titled with its name; a part has the same colour in each
// slice and in each picture. Errors: kInvalidArgument for more than 100,000 rectangles.
absl::StatusOr<SvgPanel> PictureSvg(absl::Span<const int64_t> shape,
                                    absl::Span<const PicturePart> parts);

// Panels side by side, each under its heading, as a document. Requires: as many headings.
std::string SvgDocument(absl::string_view title, absl::Span<const std::string> headings,
                        absl::Span<const SvgPanel> panels);

// As it stands in XML.
std::string XmlText(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_PICTURE_H_
