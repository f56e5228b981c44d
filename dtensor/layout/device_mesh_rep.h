// DeviceMesh::Rep: what a DeviceMesh points at. Only for its own sources.
#ifndef DTENSOR_LAYOUT_DEVICE_MESH_REP_H_
#define DTENSOR_LAYOUT_DEVICE_MESH_REP_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"

namespace dtensor {

struct DeviceMesh::Rep {
  struct Group {
    std::string name;
    AxisList axes;
    friend bool operator==(const Group&, const Group&) = default;
    friend bool operator<(const Group& a, const Group& b) { return a.name < b.name; }
    template <typename H>
    friend H AbslHashValue(H h, const Group& g) {
      return H::combine(std::move(h), g.name, g.axes);
    }
  };
  std::vector<Axis> axes;
  std::vector<Group> groups;   // sorted by name, so the order in which they were made is irrelevant
  std::vector<int> ranks;      // by position; empty if not listed: 0..size-1
  std::vector<int> positions;  // by rank, -1 for ranks not on the mesh; empty if `ranks` is
  int size = 1;
  size_t hash = 0;

  // A copy with `axis` replaced by several axes; its name becomes that of their group.
  Rep WithAxisSplit(int axis, std::vector<Axis> into) const;
};

// "4..7" or "0,2,4"
std::string RanksToString(absl::Span<const int> ranks);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_DEVICE_MESH_REP_H_
