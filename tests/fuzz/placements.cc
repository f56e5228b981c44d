// Placements, and below them a mesh and a shape for them, each on a line of its own.
#include <string>
#include <vector>

#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void TryLayout(const DeviceMesh& mesh, const Placements& placements, const Dims& shape) {
  const absl::StatusOr<Layout> layout = Layout::FromPlacements(mesh, placements, shape);
  if (!IsRead(layout)) return;
  const std::string text = layout->ToString();
  RequireSame(*layout, Layout::Parse(mesh, text), text);
  const absl::StatusOr<Placements> back = layout->ToPlacements(shape);
  if (!IsRead(back)) return;
  RequireSame(*layout, Layout::FromPlacements(mesh, *back, shape), ToString(*back));
}

}  // namespace

void Try(absl::string_view input) {
  const std::vector<absl::string_view> lines = Lines(input, 3);
  const absl::StatusOr<Placements> placements = ParsePlacements(lines[0]);
  if (!IsRead(placements)) return;
  const std::string text = ToString(*placements);
  RequireSame(*placements, ParsePlacements(text), text);
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(lines[1]);
  const absl::StatusOr<Dims> shape = ParseDims(lines[2]);
  if (IsRead(mesh) && IsRead(shape)) TryLayout(*mesh, *placements, *shape);
}

}  // namespace dtensor::fuzz
