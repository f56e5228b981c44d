// A mesh's text.
#include <string>

#include "dtensor/layout/device_mesh.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(input);
  if (!IsRead(mesh)) return;
  const std::string text = mesh->ToString();
  RequireSame(*mesh, DeviceMesh::Parse(text), text);
  for (const DeviceMesh::Axis& axis : mesh->axes()) {
    Require(IsRead(mesh->AxisIndex(axis.name)), "an axis is found by its name");
  }
  for (const int position : {0, mesh->size() / 2, mesh->size() - 1}) {
    const int rank = mesh->RankOf(position);
    Require(mesh->PositionOf(rank) == position, "ranks and positions go both ways");
    Require(mesh->RankAt(mesh->Coordinate(rank)) == rank, "so do ranks and coordinates");
  }
}

}  // namespace dtensor::fuzz
