#include "dtensor/layout/picture.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr absl::string_view kLetters =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr size_t kNoPart = kLetters.size();
constexpr int64_t kMostCells = 64;  // in a row or column of a terminal
constexpr int64_t kMostSlices = 64;
constexpr int64_t kMostRectangles = 100'000;  // as many as a browser can draw
// Some of the 256 standard colours of terminals: light, and different from their neighbours here.
constexpr int kColours[] = {117, 215, 150, 218, 229, 183, 80, 210, 187, 111, 179, 114};

// How a shape is cut into slices.
struct Grid {
  int64_t rows = 1, columns = 1, slices = 1;
  std::vector<int64_t> outer;  // sizes of the dimensions before the last two
};

Grid GridOf(absl::Span<const int64_t> shape) {
  Grid grid;
  if (!shape.empty()) grid.columns = shape.back();
  if (shape.size() > 1) grid.rows = shape[shape.size() - 2];
  if (shape.size() > 2) grid.outer.assign(shape.begin(), shape.end() - 2);
  // Capped: more slices than can be drawn need not be counted exactly (and must not overflow).
  for (const int64_t size : grid.outer) {
    grid.slices = std::min(grid.slices * std::min(size, kMostRectangles + 1), kMostRectangles + 1);
  }
  return grid;
}

// The index of slice number `slice`, in row-major order.
std::vector<int64_t> SliceIndex(const Grid& grid, int64_t slice) {
  std::vector<int64_t> index(grid.outer.size());
  for (size_t d = index.size(); d-- > 0; slice /= grid.outer[d]) index[d] = slice % grid.outer[d];
  return index;
}

// "[1, 0, :, :]"; empty if there is only one slice.
std::string SliceText(const std::vector<int64_t>& index) {
  return index.empty() ? "" : absl::StrCat("[", absl::StrJoin(index, ", "), ", :, :]");
}

bool IsIn(const Region& region, const std::vector<int64_t>& slice) {
  for (size_t d = 0; d < slice.size(); ++d) {
    if (!region[d].Contains(slice[d])) return false;
  }
  return true;
}

IndexSet ColumnsOf(const Region& region) {
  return region.empty() ? IndexSet::Interval(0, 1) : region.back();
}
IndexSet RowsOf(const Region& region) {
  return region.size() > 1 ? region[region.size() - 2] : IndexSet::Interval(0, 1);
}

// Calls fn(begin, length) for each interval of a set.
template <typename Fn>
void ForEachInterval(const IndexSet& set, const Fn& fn) {
  for (const IndexRun& run : set.runs()) {
    for (int64_t j = 0; j < run.count; ++j) fn(run.begin + j * run.stride, run.length);
  }
}
template <typename Fn>
void ForEachBox(const Region& region, const Fn& fn) {
  const IndexSet columns = ColumnsOf(region);
  ForEachInterval(RowsOf(region), [&](int64_t row, int64_t rows) {
    ForEachInterval(columns,
                    [&](int64_t column, int64_t length) { fn(row, rows, column, length); });
  });
}

int64_t Intervals(const IndexSet& set) {
  int64_t intervals = 0;
  for (const IndexRun& run : set.runs()) intervals += run.count;
  return intervals;
}

// --- Text.

std::string Cell(size_t part, bool colour) {
  if (part == kNoPart) return ". ";
  if (!colour) return {kLetters[part], ' '};
  return absl::StrFormat("\x1b[30;48;5;%dm%c \x1b[0m", kColours[part % std::size(kColours)],
                         kLetters[part]);
}

absl::Status CheckText(const Grid& grid, absl::Span<const int64_t> shape, size_t parts) {
  if (grid.rows > kMostCells || grid.columns > kMostCells) {
    return InvalidArgument({"a picture of ", DimsToString(shape),
                            " is larger than 64 x 64 letters; draw a smaller shape, or SVG"});
  }
  if (grid.slices > kMostSlices) {
    return InvalidArgument({"a picture of ", DimsToString(shape), " has more ",
                            "than 64 slices; draw a smaller shape, or SVG"});
  }
  if (parts <= kLetters.size()) return absl::OkStatus();
  return InvalidArgument({absl::StrCat(parts), " sets of ranks have unlike parts, and there are ",
                          absl::StrCat(kLetters.size()), " letters; draw SVG"});
}

std::string SliceLetters(const Grid& grid, const std::vector<int64_t>& slice,
                         absl::Span<const PicturePart> parts, bool colour) {
  std::vector<size_t> cells(grid.rows * grid.columns, kNoPart);
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!IsIn(parts[p].region, slice)) continue;
    ForEachBox(parts[p].region, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
      for (int64_t r = row; r < row + rows; ++r) {
        std::fill_n(cells.begin() + r * grid.columns + column, columns, p);
      }
    });
  }
  std::string text;
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t column = 0; column < grid.columns; ++column) {
      absl::StrAppend(&text, Cell(cells[row * grid.columns + column], colour));
    }
    if (!colour && grid.columns > 0) text.pop_back();  // no blank at the end of a line
    text += '\n';
  }
  return text;
}

// --- SVG.

constexpr double kGap = 10, kLine = 14;  // between slices; of text

struct Rectangle {
  double x, y, width, height;
};

absl::Status CheckRectangles(const Grid& grid, absl::Span<const PicturePart> parts) {
  const auto too_many = [](absl::string_view what) {
    return InvalidArgument(
        {"a picture of more than ", absl::StrCat(kMostRectangles), what, "; draw a smaller shape"});
  };
  if (grid.slices > kMostRectangles) return too_many(" slices");
  int64_t rectangles = 0;
  for (const PicturePart& part : parts) {
    int64_t boxes = Intervals(RowsOf(part.region)) * Intervals(ColumnsOf(part.region));
    for (size_t d = 0; d + 2 < part.region.size(); ++d) boxes *= part.region[d].size();
    rectangles += boxes;
    if (boxes > kMostRectangles || rectangles > kMostRectangles) {
      return too_many(" rectangles");
    }
  }
  return absl::OkStatus();
}

std::string Fill(size_t part) {
  // Hues at multiples of the golden angle are never close to each other.
  const double hue = std::fmod(static_cast<double>(part) * 137.508, 360);
  return absl::StrFormat("hsl(%.0f,70%%,%d%%)", hue, part % 2 == 0 ? 75 : 62);
}

// A part's boxes in one slice, at (x, y), and its mark in the first of them.
std::string PartSvg(const PicturePart& part, size_t number, double x, double y, double cell) {
  std::string svg =
      absl::StrFormat("<g fill=\"%s\"><title>%s</title>\n", Fill(number), XmlText(part.name));
  Rectangle first = {};
  ForEachBox(part.region, [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const Rectangle box = {x + column * cell, y + row * cell, columns * cell, rows * cell};
    if (first.width == 0) first = box;
    absl::StrAppendFormat(&svg, "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"/>\n", box.x,
                          box.y, box.width, box.height);
  });
  const double size = std::min({first.width, first.height, 16.0});
  if (size >= 6 && !part.mark.empty()) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%g\" y=\"%g\" font-size=\"%g\" fill=\"black\" stroke=\"none\" "
                          "text-anchor=\"middle\" dominant-baseline=\"central\">%s</text>\n",
                          first.x + first.width / 2, first.y + first.height / 2, size * 0.7,
                          XmlText(part.mark));
  }
  return svg + "</g>\n";
}

std::string TextSvg(double x, double y, absl::string_view text) {
  return absl::StrFormat(
      "<text x=\"%g\" y=\"%g\" font-size=\"11\" fill=\"black\" stroke=\"none\">%s</text>\n", x, y,
      XmlText(text));
}

}  // namespace

std::string XmlText(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

absl::StatusOr<std::string> PictureText(absl::Span<const int64_t> shape,
                                        absl::Span<const PicturePart> parts, bool colour) {
  const Grid grid = GridOf(shape);
  DT_RETURN_IF_ERROR(CheckText(grid, shape, parts.size()));
  std::string text;
  for (int64_t i = 0; i < grid.slices; ++i) {
    const std::vector<int64_t> slice = SliceIndex(grid, i);
    if (!slice.empty()) absl::StrAppend(&text, SliceText(slice), "\n");
    text += SliceLetters(grid, slice, parts, colour);
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    absl::StrAppend(&text, Cell(p, colour), parts[p].name, "\n");
  }
  return text;
}

absl::StatusOr<SvgPanel> PictureSvg(absl::Span<const int64_t> shape,
                                    absl::Span<const PicturePart> parts) {
  const Grid grid = GridOf(shape);
  DT_RETURN_IF_ERROR(CheckRectangles(grid, parts));
  // Arranges slices in rows, so that the picture is about square.
  const int64_t across =
      std::max<int64_t>(1, std::llround(std::ceil(std::sqrt(static_cast<double>(grid.slices)))));
  const double longest = static_cast<double>(
      std::max({grid.rows, grid.columns * std::min(across, grid.slices), int64_t{1}}));
  const double cell = std::min(24.0, 960 / longest), heading = grid.outer.empty() ? 0 : kLine;
  const double width = cell * grid.columns, height = cell * grid.rows + heading;
  SvgPanel panel;
  for (int64_t i = 0; i < grid.slices; ++i) {
    const std::vector<int64_t> slice = SliceIndex(grid, i);
    const double x = static_cast<double>(i % across) * (width + kGap);
    const double y = static_cast<double>(i / across) * (height + kGap);
    if (heading > 0) panel.svg += TextSvg(x, y + kLine - 4, SliceText(slice));
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!IsIn(parts[p].region, slice)) continue;
      panel.svg += PartSvg(parts[p], p, x, y + heading, cell);
    }
    panel.width = std::max(panel.width, x + width);
    panel.height = std::max(panel.height, y + height);
  }
  return panel;
}

std::string SvgDocument(absl::string_view title, absl::Span<const std::string> headings,
                        absl::Span<const SvgPanel> panels) {
  DT_CHECK(headings.size() == panels.size());
  const bool has_headings =
      absl::c_any_of(headings, [](const auto& text) { return !text.empty(); });
  const double top = has_headings ? kLine + 4 : 0;
  double width = 0, height = 0;
  std::string content;
  for (size_t i = 0; i < panels.size(); ++i) {
    if (i > 0) width += 2 * kGap;
    if (has_headings) content += TextSvg(width, kLine - 3, headings[i]);
    absl::StrAppendFormat(&content, "<g transform=\"translate(%g,%g)\">\n%s</g>\n", width, top,
                          panels[i].svg);
    width += std::max(panels[i].width, has_headings ? 7.0 * headings[i].size() : 0.0);
    height = std::max(height, top + panels[i].height);
  }
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "stroke=\"white\" stroke-width=\"0.5\" font-family=\"sans-serif\">\n<title>%s</title>\n%s"
      "</svg>\n",
      width, height, width, height, XmlText(title), content);
}

}  // namespace dtensor
