#include "dtensor/layout/visualize.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string RanksText(absl::Span<const int> ranks) {
  constexpr size_t kShown = 16;
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  if (ranks.size() <= kShown) return absl::StrCat("ranks ", absl::StrJoin(ranks, ", "));
  return absl::StrCat("ranks ", absl::StrJoin(ranks.subspan(0, kShown), ", "), ", ... (",
                      ranks.size(), " ranks)");
}

// A note on what several holders of one element mean.
std::string Note(const Layout& layout) {
  if (!layout.is_partial()) return "";
  const size_t averaged = layout.averaged_axes().size();
  const bool both = averaged > 0 && averaged < layout.partial_axes().size();
  return absl::StrCat("each rank holds a term of the ",
                      both ? "sum of averages" : ToString(layout.partial_op()), "\n");
}

absl::Status CheckShape(const Layout& layout, absl::Span<const int64_t> shape) {
  if (layout.ndim() != static_cast<int>(shape.size())) {
    return InvalidArgument({"a picture of ", DimsToString(shape), " as ", layout.ToString(),
                            ": the layout has ", absl::StrCat(layout.ndim()), " dimensions"});
  }
  DT_RETURN_IF_ERROR(CheckedNumElements("a picture", shape).status());
  return CheckRegions(layout, shape);
}

}  // namespace

std::vector<Holders> HoldersOf(const Layout& layout, absl::Span<const int64_t> shape) {
  const DeviceMesh& mesh = layout.mesh();
  const AxisList sharding = layout.sharding_axes();
  AxisList others;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!absl::c_linear_search(sharding, axis)) others.push_back(axis);
  }
  std::vector<Holders> all;
  for (int i = 0; i < mesh.size(); ++i) {
    const int rank = mesh.RankOf(i);
    const auto coordinate = mesh.Coordinate(rank);
    if (!absl::c_all_of(others, [&](int axis) { return coordinate[axis] == 0; })) continue;
    Region region = Regions(layout, shape, coordinate);
    if (NumElements(region) > 0) all.push_back({mesh.Group(rank, others), std::move(region)});
  }
  return all;
}

std::vector<PicturePart> HolderParts(const Layout& layout, absl::Span<const int64_t> shape) {
  std::vector<PicturePart> parts;
  for (Holders& holders : HoldersOf(layout, shape)) {
    parts.push_back(
        {RanksText(holders.ranks), absl::StrCat(holders.ranks[0]), std::move(holders.region)});
  }
  return parts;
}

absl::StatusOr<std::string> VisualizeLayout(const Layout& layout, absl::Span<const int64_t> shape,
                                            bool colour) {
  DT_RETURN_IF_ERROR(CheckShape(layout, shape));
  DT_ASSIGN_OR_RETURN(const std::string picture,
                      PictureText(shape, HolderParts(layout, shape), colour));
  return picture + Note(layout);
}

absl::StatusOr<std::string> VisualizeLayoutSvg(const Layout& layout,
                                               absl::Span<const int64_t> shape) {
  DT_RETURN_IF_ERROR(CheckShape(layout, shape));
  DT_ASSIGN_OR_RETURN(const SvgPanel panel, PictureSvg(shape, HolderParts(layout, shape)));
  const std::string title = absl::StrCat(DimsToString(shape), " as ", layout.ToString());
  return SvgDocument(title, {std::string()}, {&panel, 1});
}

}  // namespace dtensor
