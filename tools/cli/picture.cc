#include "dtensor/tools/cli/picture.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::cli {
namespace {

constexpr absl::string_view kLetters =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr int64_t kMostCells = 64;            // of a terminal's row or column
constexpr int64_t kMostRectangles = 100'000;  // that a browser still draws
// Of the 256 colours that terminals agree on: light, and unlike their neighbours in this list.
constexpr int kColours[] = {117, 215, 150, 218, 229, 183, 80, 210, 187, 111, 179, 114};

struct Grid {
  int64_t rows = 1, columns = 1;
};

absl::StatusOr<Grid> GridOf(absl::Span<const int64_t> shape) {
  if (shape.size() == 1) return Grid{1, shape[0]};
  if (shape.size() == 2) return Grid{shape[0], shape[1]};
  return InvalidArgument({"--shape: ", DimsToString(shape), " has ", absl::StrCat(shape.size()),
                          " dimensions; --picture and --svg draw 1 or 2"});
}

const IndexSet& ColumnsOf(const Region& region) { return region.back(); }
IndexSet RowsOf(const Region& region) {
  return region.size() == 2 ? region[0] : IndexSet::Interval(0, 1);
}

// Calls fn(begin, length) for each interval of a set.
template <typename Fn>
void ForEachInterval(const IndexSet& set, const Fn& fn) {
  for (const IndexRun& run : set.runs()) {
    for (int64_t j = 0; j < run.count; ++j) fn(run.begin + j * run.stride, run.length);
  }
}

int64_t Intervals(const IndexSet& set) {
  int64_t intervals = 0;
  for (const IndexRun& run : set.runs()) intervals += run.count;
  return intervals;
}

// What several holders mean.
std::string Note(const Layout& layout) {
  if (!layout.is_partial()) return "";
  const size_t averaged = layout.averaged_axes().size();
  const bool both = averaged > 0 && averaged < layout.partial_axes().size();
  return absl::StrCat("each rank holds a term of the ",
                      both ? "sum of averages" : ToString(layout.partial_op()), "\n");
}

std::string Cell(size_t holders, bool colour) {
  const char letter = kLetters[holders];
  if (!colour) return {letter, ' '};
  return absl::StrFormat("\x1b[30;48;5;%dm%c \x1b[0m", kColours[holders % std::size(kColours)],
                         letter);
}

// The holders of each element, row by row.
std::vector<size_t> CellHolders(const Grid& grid, absl::Span<const Holders> holders) {
  std::vector<size_t> cells(grid.rows * grid.columns);
  for (size_t h = 0; h < holders.size(); ++h) {
    ForEachInterval(RowsOf(holders[h].region), [&](int64_t row, int64_t rows) {
      ForEachInterval(ColumnsOf(holders[h].region), [&](int64_t column, int64_t columns) {
        for (int64_t r = row; r < row + rows; ++r) {
          std::fill_n(cells.begin() + r * grid.columns + column, columns, h);
        }
      });
    });
  }
  return cells;
}

struct Rectangle {
  double x, y, width, height;
};

// One set of holders as an SVG group: its boxes, and its letter or number in the first of them.
std::string SvgGroup(const Holders& holders, size_t index, double cell) {
  std::string svg;
  // Hues a golden angle apart never come close to one another.
  const double hue = std::fmod(static_cast<double>(index) * 137.508, 360);
  absl::StrAppendFormat(&svg, "<g fill=\"hsl(%.0f,70%%,%d%%)\"><title>rank %s</title>\n", hue,
                        index % 2 == 0 ? 75 : 62, RanksToString(holders.ranks));
  Rectangle first = {};
  ForEachInterval(RowsOf(holders.region), [&](int64_t row, int64_t rows) {
    ForEachInterval(ColumnsOf(holders.region), [&](int64_t column, int64_t columns) {
      const Rectangle box = {column * cell, row * cell, columns * cell, rows * cell};
      if (first.width == 0) first = box;
      absl::StrAppendFormat(&svg, "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"/>\n", box.x,
                            box.y, box.width, box.height);
    });
  });
  const double size = std::min({first.width, first.height, 16.0});
  if (size >= 6) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%g\" y=\"%g\" font-size=\"%g\" fill=\"black\" stroke=\"none\" "
                          "text-anchor=\"middle\" dominant-baseline=\"central\">%d</text>\n",
                          first.x + first.width / 2, first.y + first.height / 2, size * 0.7,
                          holders.ranks[0]);
  }
  return svg + "</g>\n";
}

absl::Status CheckRectangles(absl::Span<const Holders> holders) {
  int64_t rectangles = 0;
  for (const Holders& h : holders) {
    rectangles += Intervals(RowsOf(h.region)) * Intervals(ColumnsOf(h.region));
    if (rectangles > kMostRectangles) {
      return InvalidArgument({"--svg: more than ", absl::StrCat(kMostRectangles),
                              " rectangles; draw a smaller --shape"});
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Holders> HoldersOf(const Layout& layout, absl::Span<const int64_t> shape) {
  const DeviceMesh& mesh = layout.mesh();
  const AxisList sharding = layout.sharding_axes();
  AxisList others;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (std::find(sharding.begin(), sharding.end(), axis) == sharding.end()) others.push_back(axis);
  }
  std::vector<Holders> all;
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.RankOf(i);
    const auto coordinate = mesh.Coordinate(rank);
    const auto is_first = [&](int axis) { return coordinate[axis] == 0; };
    if (!std::all_of(others.begin(), others.end(), is_first)) continue;
    Region region = Regions(layout, shape, coordinate);
    if (NumElements(region) > 0) all.push_back({mesh.Group(rank, others), std::move(region)});
  }
  return all;
}

std::string RanksToString(absl::Span<const int> ranks) {
  constexpr size_t kShown = 16;
  if (ranks.size() <= kShown) return absl::StrJoin(ranks, ", ");
  return absl::StrCat(absl::StrJoin(ranks.subspan(0, kShown), ", "), ", ... (", ranks.size(),
                      " ranks)");
}

absl::StatusOr<std::string> DrawText(const Layout& layout, absl::Span<const int64_t> shape,
                                     bool colour) {
  DT_ASSIGN_OR_RETURN(const Grid grid, GridOf(shape));
  if (grid.rows > kMostCells || grid.columns > kMostCells) {
    return InvalidArgument({"--picture: ", DimsToString(shape), " is larger than 64 x 64 letters; ",
                            "draw a smaller --shape, or write --svg=FILE"});
  }
  const std::vector<Holders> holders = HoldersOf(layout, shape);
  if (holders.size() > kLetters.size()) {
    return InvalidArgument({"--picture: ", absl::StrCat(holders.size()),
                            " sets of ranks hold unlike parts, and there are ",
                            absl::StrCat(kLetters.size()), " letters; write --svg=FILE"});
  }
  std::string text;
  const std::vector<size_t> cells = CellHolders(grid, holders);
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t column = 0; column < grid.columns; ++column) {
      absl::StrAppend(&text, Cell(cells[row * grid.columns + column], colour));
    }
    if (!colour && grid.columns > 0) text.pop_back();  // no blank at the end of a line
    text += '\n';
  }
  for (size_t h = 0; h < holders.size(); ++h) {
    absl::StrAppend(&text, Cell(h, colour), holders[h].ranks.size() == 1 ? "rank " : "ranks ",
                    RanksToString(holders[h].ranks), "\n");
  }
  return text + Note(layout);
}

absl::StatusOr<std::string> DrawSvg(const Layout& layout, absl::Span<const int64_t> shape) {
  DT_ASSIGN_OR_RETURN(const Grid grid, GridOf(shape));
  const std::vector<Holders> holders = HoldersOf(layout, shape);
  DT_RETURN_IF_ERROR(CheckRectangles(holders));
  const double longest = static_cast<double>(std::max({grid.rows, grid.columns, int64_t{1}}));
  const double cell = std::min(24.0, 960 / longest), width = cell * grid.columns,
               height = cell * grid.rows;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "stroke=\"white\" stroke-width=\"%g\" font-family=\"sans-serif\">\n"
      "<title>%s as %s</title>\n",
      width, height, width, height, std::min(1.0, cell / 12), DimsToString(shape),
      layout.ToString());
  for (size_t h = 0; h < holders.size(); ++h) svg += SvgGroup(holders[h], h, cell);
  return svg + "</svg>\n";
}

}  // namespace dtensor::cli
