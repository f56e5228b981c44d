// What a DeviceMesh points at. For its own sources alone.
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
  std::vector<Group> groups;   // by name, so that the order of their making does not matter
  std::vector<int> ranks;      // by position; empty if they were not said: 0..size-1
  std::vector<int> positions;  // by rank, -1 for those without; empty as `ranks` is
  int size = 1;
  size_t hash = 0;

  // With `axis` replaced by several, whose group takes its name.
  Rep WithAxisSplit(int axis, std::vector<Axis> into) const;
};

// "4..7" or "0,2,4"
std::string RanksToString(absl::Span<const int> ranks);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_DEVICE_MESH_REP_H_
