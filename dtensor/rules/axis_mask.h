// A set of mesh axes as bits. For the sources of this folder.
#ifndef DTENSOR_RULES_AXIS_MASK_H_
#define DTENSOR_RULES_AXIS_MASK_H_

#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"

namespace dtensor {

using AxisMask = uint32_t;
static_assert(DeviceMesh::kMaxAxes <= 32);

inline AxisMask MaskOf(absl::Span<const int> axes) {
  AxisMask mask = 0;
  for (int axis : axes) mask |= AxisMask{1} << axis;
  return mask;
}

inline AxisList AxesIn(AxisMask mask) {
  AxisList axes;
  for (int axis = 0; mask >> axis; ++axis) {
    if (mask >> axis & 1) axes.push_back(axis);
  }
  return axes;
}

}  // namespace dtensor

#endif  // DTENSOR_RULES_AXIS_MASK_H_
