// A mesh, a layout and a shape, each on a line of its own.
#include "dtensor/layout/layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

// How many ranks hold each element.
int64_t Holders(const Layout& layout) {
  int64_t holders = layout.mesh().size();
  for (const int axis : layout.sharding_axes()) holders /= layout.mesh().axis_size(axis);
  return holders;
}

void TryRegions(const Layout& layout, const Dims& shape) {
  absl::int128 held = 0;
  for (int position = 0; position < layout.mesh().size(); ++position) {
    const int rank = layout.mesh().RankOf(position);
    const Region region = Regions(layout, shape, layout.mesh().Coordinate(rank));
    const Dims local = layout.LocalShape(shape, rank);
    for (size_t d = 0; d < shape.size(); ++d) {
      Require(region[d].size() == local[d], "a local shape has the sizes of the regions");
    }
    held += NumElements(region);
  }
  Require(held == absl::int128(NumElements(shape)) * Holders(layout),
          "each element is held as often as it is replicated");
}

// Small enough for the count of elements, and for a look at every rank.
bool IsSmall(const Layout& layout, const Dims& shape) {
  if (layout.ndim() != static_cast<int>(shape.size()) || layout.mesh().size() > 64) return false;
  absl::int128 elements = 1;
  for (const int64_t size : shape) {
    elements *= std::max<int64_t>(size, 1);
    if (elements > absl::int128(int64_t{1} << 48)) return false;
  }
  return CheckRegions(layout, shape).ok();
}

}  // namespace

void Try(absl::string_view input) {
  const std::vector<absl::string_view> lines = Lines(input, 3);
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(lines[0]);
  if (!IsRead(mesh)) return;
  const absl::StatusOr<Layout> layout = Layout::Parse(*mesh, lines[1]);
  if (!IsRead(layout)) return;
  const std::string text = layout->ToString();
  RequireSame(*layout, Layout::Parse(*mesh, text), text);
  const absl::StatusOr<Dims> shape = ParseDims(lines[2]);
  if (!IsRead(shape) || !IsSmall(*layout, *shape)) return;
  TryRegions(*layout, *shape);
  if (const auto placements = layout->ToPlacements(*shape); IsRead(placements)) {
    RequireSame(*layout, Layout::FromPlacements(*mesh, *placements, *shape), ToString(*placements));
  }
}

}  // namespace dtensor::fuzz
