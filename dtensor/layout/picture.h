// Draws tensors whose elements belong to parts, as letters for a terminal and as SVG. The headers
// visualize.h, of this and other folders, use it.
//
// A vector is drawn as one row, a scalar as one element. Of a tensor with more than two dimensions
// the last two are drawn, as one slice for each index of the others. Requires: shapes that a tensor
// may have (dims.h), and parts within them.
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
  std::string mark;  // a short text drawn into the part in SVG: "0"; empty: none
  Region region;     // of the tensor; parts are disjoint
};

// Prints each slice under its index, with one letter for each element ('.' if it is in no part),
// then a legend of the letters. `colour`: with coloured backgrounds, by escape sequences of
// terminals. Errors: kInvalidArgument for slices of more than 64 x 64 elements, more than 64
// slices, or more than 62 parts.
absl::StatusOr<std::string> PictureText(absl::Span<const int64_t> shape,
                                        absl::Span<const PicturePart> parts, bool colour);

// A group of SVG elements, without a document around it.
struct SvgPanel {
  std::string svg;
  double width = 0, height = 0;
};
// Draws a rectangle for each box of each part, with the part's name as its title. The colour
// depends on the part's number alone, so it is the same in every slice and picture. Errors:
// kInvalidArgument for more than 100,000 rectangles or slices.
absl::StatusOr<SvgPanel> PictureSvg(absl::Span<const int64_t> shape,
                                    absl::Span<const PicturePart> parts);

// Panels side by side, each under its heading, as a document. Requires: as many headings.
std::string SvgDocument(absl::string_view title, absl::Span<const std::string> headings,
                        absl::Span<const SvgPanel> panels);

// Escapes text for XML.
std::string XmlText(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_PICTURE_H_
